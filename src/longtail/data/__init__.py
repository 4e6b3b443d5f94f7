"""Images and labels for training: class profiles, data sets, subsets and splits.

profiles   how many examples each class gets (exponential, step)
images     ImageSet and LongTailedData: arrays with their fingerprint
subsets    which examples: the long-tailed subset, the held-out split
digits     scikit-learn's handwritten digits, made long-tailed
"""
