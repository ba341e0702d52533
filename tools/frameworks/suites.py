# SPDX-License-Identifier: Apache-2.0
"""What tools/try-frameworks runs: for each framework the package whose version is shown, the cases, and known differences.

A suite's cases are the files of the framework's own tests that make a data loader (from the sdist of its PyPI package, or from a
checkout that --checkout names, where the sdist has none that run) and a program of programs/."""
import dataclasses
import fnmatch


@dataclasses.dataclass
class Suite:
    name: str
    package: str
    # Files of the framework's own tests, relative to its sources; `sdist` says whether its PyPI sdist has them.
    tests: tuple = ()
    sdist: bool = False
    # Arguments of pytest for these tests: cases that need a network, a GPU, or that run for minutes without a data loader.
    arguments: tuple = ()
    # Names of cases (fnmatch patterns) that may differ, each with the reason.
    explained: dict = dataclasses.field(default_factory=dict)

    def reason(self, case):
        return next((reason for pattern, reason in self.explained.items() if fnmatch.fnmatchcase(case, pattern)), None)


SUITES = (
    Suite("monai", "monai", tests=("tests/data", "tests/handlers", "tests/engines", "tests/integration/test_integration_sliding_window.py",
                                   "tests/transforms/compose", "tests/apps/test_download_and_extract.py"),
          arguments=("-k", "not download and not csv_saver and not health_azure and not mlflow")),
    Suite("accelerate", "accelerate", sdist=True, arguments=("-k", "not multi_gpu and not slow"),
          tests=("tests/test_data_loader.py", "tests/test_accelerator.py", "tests/test_state_checkpointing.py", "tests/test_grad_sync.py",
                 "tests/test_scheduler.py", "tests/test_metrics.py", "tests/test_memory_utils.py")),
    Suite("transformers", "transformers"),
    Suite("lightning", "pytorch-lightning",
          tests=("tests/tests_pytorch/loops", "tests/tests_pytorch/utilities/test_data.py", "tests/tests_pytorch/trainer/test_dataloaders.py",
                 "tests/tests_pytorch/core/test_datamodules.py", "tests/tests_pytorch/trainer/connectors/test_data_connector.py",
                 "tests/tests_pytorch/utilities/test_combined_loader.py")),
    Suite("torch_geometric", "torch-geometric", tests=("test/loader", "test/data")),
    Suite("skorch", "skorch", sdist=True, tests=("skorch/tests/test_dataset.py", "skorch/tests/test_net.py"),
          arguments=("-k", "not cuda and not compile")),
    Suite("ignite", "pytorch-ignite", sdist=True,
          tests=("tests/ignite/engine/test_deterministic.py", "tests/ignite/engine/test_custom_events.py", "tests/ignite/engine/test_engine.py",
                 "tests/ignite/handlers/test_lr_finder.py"),
          arguments=("-k", "not distrib and not gloo and not nccl and not hvd and not xla")),
    Suite("webdataset", "webdataset", tests=("tests/test_loaders.py", "tests/test_pipeline.py", "tests/test_shuffles.py"),
          arguments=[f"--deselect=tests/{case}" for case in (
              "test_loaders.py::test_dataloader", *(f"test_pipeline.py::test_{name}" for name in (
                  "dataloader", "decode_handlers", "decoder", "pipe", "torchvision", "batched", "unbatched")))]),
    Suite("timm", "timm", sdist=True,
          tests=("tests/test_data.py", "tests/test_naflex_dataset.py", "tests/test_scheduled_sampler.py")),
    Suite("ultralytics", "ultralytics"),
    Suite("torchio", "torchio"),
    Suite("fastai", "fastai"),
)
