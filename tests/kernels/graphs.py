"""CUDA graphs of a step, as a training would capture it."""

import torch


def captured(step):
    """A graph of `step`, and the tensors that it writes; the step has run once before."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = step()
    return graph, written
