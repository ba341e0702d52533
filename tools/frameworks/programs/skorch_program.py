# SPDX-License-Identifier: Apache-2.0
"""skorch: a classifier whose iterators have workers: batches, losses and weights."""
import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback


class Look(Callback):
    def __init__(self, seen):
        self.seen = seen

    def on_batch_begin(self, net, batch=None, training=None, **_):
        self.seen.step(batch, training)


@pytest.mark.parametrize("settings", ({}, {"iterator_train__persistent_workers": True}, {"iterator_train__drop_last": True}))
def test_classifier(seen, settings):
    x, y = np.random.rand(50, 4).astype(np.float32), np.arange(50) % 2
    net = NeuralNetClassifier(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Softmax(-1)), max_epochs=2, batch_size=8, verbose=0,
                              iterator_train__shuffle=True, iterator_train__num_workers=2, iterator_valid__num_workers=1,
                              callbacks=[Look(seen)], **settings)
    net.fit(x, y)
    seen.value(net.history[:, "train_loss"], net.history[:, "valid_loss"], net.predict_proba(x).tolist())
    seen.weights(net.module_)
