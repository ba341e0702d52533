# SPDX-License-Identifier: Apache-2.0
"""Where the runtime can't run, the package can be imported, and its DataLoader is torch's, with one warning that says why.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python fallback_test.py"""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy_or_skip  # noqa: F401
from feedlane import _core, fallback

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(HERE), "feedlane")
HAS_TORCH = importlib.util.find_spec("torch") is not None
IMPORT = """
import feedlane
print(feedlane.__version__)
assert not hasattr(feedlane, "__wrapped__")
try:
    from feedlane import Loader
    print("runs")
except ImportError as error:
    print(error)
"""
LOAD = """
import pickle, torch, feedlane
if __name__ == "__main__":
    from feedlane import DataLoader
    from feedlane import DataLoader
    loader = DataLoader(list(range(4)), batch_size=2, num_workers=1, held=2, name="x")
    assert isinstance(pickle.loads(pickle.dumps(loader)), torch.utils.data.DataLoader)
    print([batch.tolist() for batch in loader])
"""


def run(program, prefix=(), path=os.path.dirname(PACKAGE), **environment):
    env = {k: v for k, v in os.environ.items() if k not in ("FEEDLANE_LIBRARY", "FEEDLANE_DISABLE")} | environment
    done = subprocess.run([*prefix, sys.executable, "-B", "-c", program], env=env | {"PYTHONPATH": path}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return done


# promise: python-fallback
class Fallback(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def copy(self):
        """A package without its module, in a folder where no build is found."""
        shutil.copytree(PACKAGE, os.path.join(self.folder.name, "feedlane"), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        return self.folder.name

    def check(self, reason, prefix=(), before="", **options):
        said = run(before + IMPORT, prefix, **options).stdout
        self.assertRegex(said, "feedlane.Loader is not available here, because feedlane can't run: " + reason)
        if not HAS_TORCH:
            return
        done = run(before + LOAD, prefix, **options)
        self.assertEqual(done.stdout, "[[0, 1], [2, 3]]\n")
        self.assertRegex(done.stderr, "feedlane.DataLoader is torch.utils.data.DataLoader, because .*" + reason)
        self.assertEqual(done.stderr.count("RuntimeWarning"), 1)

    def test_disabled(self):
        self.check("FEEDLANE_DISABLE is set", FEEDLANE_DISABLE="1")

    def test_not_disabled(self):
        if "FEEDLANE_LIBRARY" not in os.environ:
            self.skipTest("no FEEDLANE_LIBRARY")
        for value in "0", "":
            said = run(IMPORT, FEEDLANE_DISABLE=value, FEEDLANE_LIBRARY=os.environ["FEEDLANE_LIBRARY"]).stdout
            self.assertEqual(said, _core.VERSION + "\nruns\n")

    def test_another_system(self):
        self.check("it needs Linux, and this is darwin",
                   before="import sys; there, sys.platform = sys.platform, 'darwin'; import feedlane; sys.platform = there\n")

    def test_no_module(self):
        path = self.copy()
        self.check(f"its compiled module is missing: .*; looked for {re.escape(path)}", path=path)

    def test_a_module_that_the_linker_refuses(self):
        path = self.copy()
        with open(os.path.join(path, "feedlane", "_core.abi3.so"), "wb") as file:
            file.write(b"no ELF")
        self.check("its compiled module can't be loaded: ", path=path)

    @unittest.skipUnless(shutil.which("strace"), "no strace")
    def test_a_kernel_that_lacks_a_call(self):
        for call in "memfd_create", "pidfd_open":
            with self.subTest(call):
                said = run(IMPORT, ("strace", "-o", os.devnull, "-e", f"inject={call}:error=ENOSYS")).stdout
                self.assertRegex(said, "this system refuses one of them: .*Function not implemented")

    @unittest.skipUnless(HAS_TORCH, "no torch")
    def test_it_takes_the_arguments_of_ours(self):
        import inspect
        import torch.utils.data
        from feedlane import DataLoader, torch_arguments
        ours, arguments, theirs = ({name for name, p in inspect.signature(kind.__init__).parameters.items()
                                    if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
                                   for kind in (DataLoader, torch_arguments.Arguments, torch.utils.data.DataLoader))
        self.assertEqual(set(fallback.OURS), (ours | arguments) - theirs)


if __name__ == "__main__":
    unittest.main()
