"""Results in, tables, figures and pages out; nothing here computes a result.

figures      the one style and palette of every matplotlib figure, and how they are saved
tables       rows of text that the terminal, Markdown and pages share
synthetic    the figure and tables of the paper's synthetic study (section 6.1)
theory       Table 1 with witnesses, the appendix's figures, the separable experiment
comparison   how a comparison of runs reads: its tables, and two sentences about it
sections     what each chart of a comparison shows, as plain data; filled by `arrange`
charts       the page's charts (plotly); those over tau are in `tau_charts`
run_figures  the same charts as SVG and PNG for papers (matplotlib)
blocks       what a page is made of, and how it becomes one HTML file
page         the page about runs
table_exp    the CIFAR EXP table with its figures: weight_norms, tau_curves, per_class
claims       the verdicts on the paper's claims; `exp_rows` names rows and intervals
reproduction the documentation's page and the README's table on all that
strong       how far the logit-adjusted loss goes; `how_far` is the documentation's page on it
adjusting    what is said about adjusted predictions; `adjusting_page` is the page about them
"""
