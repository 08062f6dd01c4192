"""Accuracy of models without a head: nearest neighbours and a linear probe on their features."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..shapes import Float, Int
from .accuracy import Result

Probe = Literal["knn", "linear"]
NEIGHBOURS = 10
TEMPERATURE = 0.07  # a neighbour's weight is exp(cosine / temperature)


def score(
    probe: Probe,
    learned: Result,
    result: Result,
    labels: Int[Tensor, " train"],
    truth: Int[Tensor, " test"],
) -> None:
    """Replace what a result's raw features scored by what the probe makes of them.

    `labels` and `truth` are those of all training and test images; results may hold fewer.
    """
    features, known = torch.cat(learned.outputs), labels[learned.index]
    scores = predict(probe, features, known, torch.cat(result.outputs))
    result.hits, result.hits5 = [], []
    result.rate(scores, truth[result.index])


def predict(
    probe: Probe,
    train: Float[Tensor, "train width"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test width"],
) -> Float[Tensor, "test classes"]:
    """A score for each class, from features of labelled images."""
    for name, features in (("train", train), ("test", test)):
        if features.dim() != 2:
            raise ValueError(
                f"a probe needs one feature vector for each {name} image, "
                f"the model gives {tuple(features.shape[1:])}"
            )
    return _nearest(train, labels, test) if probe == "knn" else _linear(train, labels, test)


def _nearest(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Votes of the nearest neighbours by cosine, each weighted by its likeness."""
    near = F.normalize(test, dim=-1) @ F.normalize(train, dim=-1).T
    likeness, which = near.topk(min(NEIGHBOURS, len(train)), dim=-1)
    scores = torch.zeros(len(test), int(labels.max()) + 1)
    return scores.scatter_add(1, labels[which], (likeness / TEMPERATURE).exp())


def _linear(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    fitted.fit(train.numpy(), labels.numpy())
    scores = torch.full((len(test), int(labels.max()) + 1), -torch.inf)
    scores[:, fitted.classes_] = torch.as_tensor(fitted.decision_function(test.numpy())).float()
    return scores
