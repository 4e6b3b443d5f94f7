"""Results in, tables, figures and pages out; nothing here computes a result.

figures    the one style and palette of every matplotlib figure, and how they are saved
tables     rows of text that the terminal, Markdown and pages share
synthetic  the figure and tables of the paper's synthetic study (section 6.1)
theory     Table 1 with witnesses, the appendix's figures, the separable experiment
"""
