"""The networks that the loss functions of an algorithm get."""

from drl_cli.optim import gradients


def nets(algorithm):
    """Return the parts of an algorithm as a loss function sees them, with `target` and `frozen`."""
    return gradients._modules(algorithm.params)


def layers(mlp, flat=None):
    """Return the weights and biases of the first network of a `drl.MLP` as views of `flat`, by default its own."""
    return mlp.on(mlp.flat.detach() if flat is None else flat).networks[0]
