# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer: order, random generators and weights over two epochs, for several settings; persistent workers
three times."""
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, TrainerCallback

WORKERS = {"dataloader_num_workers": 2}
SETTINGS = {
    "inline": {},
    "workers": WORKERS,
    "persistent": {**WORKERS, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
    "persistent, second time": {**WORKERS, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
    "persistent, third time": {**WORKERS, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
    "drop_last": {**WORKERS, "dataloader_drop_last": True, "gradient_accumulation_steps": 2},
    "data_seed": {**WORKERS, "data_seed": 5, "dataloader_persistent_workers": True},
    "grouped": {**WORKERS, "train_sampling_strategy": "group_by_length"},
    "evaluated": {**WORKERS, "dataloader_persistent_workers": True, "eval_strategy": "steps", "eval_steps": 3},
}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 26

    def __getitem__(self, i):
        if i >= len(self):  # grouping by length iterates
            raise IndexError(i)
        return {"input_ids": torch.full((6,), i), "labels": i % 2}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from (Rows()[i] for i in range(info.id if info else 0, 26, info.num_workers if info else 1))


def make(tmp_path, seen, rows, **settings):
    model = BertForSequenceClassification(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                                     intermediate_size=16))
    model.register_forward_pre_hook(lambda _, __, given: seen.step(given["input_ids"][:, 0]), with_kwargs=True)
    arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "report_to": [], "save_strategy": "no", "use_cpu": True,
                 "disable_tqdm": True, **settings}
    return model, Trainer(model, TrainingArguments(str(tmp_path), **arguments), train_dataset=rows, eval_dataset=Rows())


@pytest.mark.parametrize("settings", SETTINGS)
def test_map(seen, tmp_path, settings):
    model, trainer = make(tmp_path, seen, Rows(), **SETTINGS[settings])
    seen.value(trainer.train().training_loss, trainer.evaluate()["eval_loss"])
    seen.weights(model)


@pytest.mark.parametrize("persistent", (False, True))
def test_iterable(seen, tmp_path, persistent):
    model, trainer = make(tmp_path, seen, Stream(), max_steps=12, dataloader_persistent_workers=persistent, **WORKERS)
    seen.value(trainer.train().training_loss)
    seen.weights(model)


@pytest.mark.parametrize("persistent", (False, True))
def test_resumed(seen, tmp_path, persistent):
    """A second trainer continues from the checkpoint of a step in mid-epoch."""
    class Stop(TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            control.should_training_stop = control.should_training_stop or state.global_step == 5
    settings = {**WORKERS, "save_strategy": "steps", "save_steps": 5, "dataloader_persistent_workers": persistent}
    _, trainer = make(tmp_path, seen, Rows(), **settings)
    trainer.add_callback(Stop)
    trainer.train()
    model, trainer = make(tmp_path, seen, Rows(), **settings)
    trainer.train(resume_from_checkpoint=True)
    seen.weights(model)
