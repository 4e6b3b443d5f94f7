"""Results in, tables, figures and pages out.

figures      the one style and palette of every matplotlib figure, and how they are saved
tables       rows of text that the terminal, Markdown and pages share
compare      finished runs of one data set -> a comparison of methods, post-hoc ones included
comparison   how a comparison reads: its tables, and two sentences about it
sections     what each chart of a comparison shows, as plain data; filled by `arrange`
charts       the page's charts (plotly); those over tau are in `tau_charts`
run_figures  the same charts as SVG and PNG for papers (matplotlib)
blocks       what a page is made of, and how it becomes one HTML file
page         the page about runs
adjusting    what is said about adjusted predictions; `adjusting_page` is the page about them
"""
