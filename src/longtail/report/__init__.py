"""Results in, tables, figures and pages out.

tables     rows of text for the terminal, Markdown and pages
figures    the style and palette of every matplotlib figure
compare    finished runs of one data set -> a comparison of methods, post-hoc ones included
adjusting  tables and sentences about adjusted predictions
charts     plotly charts, and the same drawn by matplotlib for papers
pages      the two HTML pages, of runs and of adjusted predictions
describe   numbers and the figure of a long-tailed data set
"""
