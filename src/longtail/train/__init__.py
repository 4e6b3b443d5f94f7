"""Training: recipes are data, the engine is one loop, and a single run is a cohort of one.

In the order in which a run goes through them:

recipe      epochs, optimiser, schedule, normalisation: everything but data, method and seed
named_recipes  their values, by name
methods     losses, DRW, label smoothing and sampling by name
augment     crops, flips and normalisation of whole batches, on any device
trivial     TrivialAugment, likewise
mixing      Cutout, CutMix and mixup, likewise
batches     what is drawn for the images of an epoch, and how they are made of that
plan        what an epoch will do, drawn beforehand from the run's seed
blocks      the batches of many steps, made at once, with the teachers' answers to them
sam         sharpness-aware minimisation around any optimiser
averaging   an average of the weights over the steps
distillation  how far a network is from its teachers
optimizers  the recipe's optimiser, and which parameters it treats alike
team        runs that step as one (on a CPU always a single one), and the step
teachers    finished runs that others learn from: who may teach, and their mean logits
distributed several processes that train one run, and what they say to each other
streamed    a team of one whose images come from disk, in any number of processes
sharded_team  the same with a classifier that is cut over the processes
sampled_team  the same with a loss from some classes that are drawn
lane        where a team runs: in line on a CPU, as CUDA graphs on a GPU
checkpoint  what a killed run goes on from
evaluation  a finished run's logits on a split
refusals    what is refused before any training
failures    what went wrong in it, in words
progress    what a caller hears after an epoch
engine      runs into their folders
tensorboard an epoch's numbers for TensorBoard

That classifier, for one's own training loop too: sharded_head, with class_slices and sharded_loss.
"""
