# SPDX-License-Identifier: Apache-2.0
"""The package's types: the compiled module's stub names what the module has, no modules import each other in a circle, all
that is public has a docstring, and mypy --strict passes the package and programs over it. The last is skipped where there is no
mypy, or one below 1.0.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python types_test.py [unittest's arguments]"""
import ast
import graphlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from numpy_or_skip import np  # noqa: F401
import feedlane
from feedlane import _core

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path(feedlane.__file__).resolve().parent
STUB = PACKAGE / "_core.pyi"
OF_TORCH = ("dataloader", "fallback", "torch_arguments", "torch_failures", "torch_inline", "torch_iterator", "torch_processes",
            "torch_state", "torch_worker")


def definitions(body):
    """By name, the functions, classes, variables and properties that a module or a class of the stub defines."""
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return found


def is_public(name):
    return not name.startswith("_")


def command():
    """What runs mypy for this interpreter, or None."""
    for words in [sys.executable, "-m", "mypy"], ["mypy"]:
        try:
            said = subprocess.run([*words, "--version"], capture_output=True, text=True)
        except OSError:
            continue
        version = re.match(r"mypy (\d+)\.", said.stdout)
        if said.returncode == 0 and version and int(version[1]) >= 1:
            return [*words, "--strict", "--python-executable", sys.executable]
    return None


class Stub(unittest.TestCase):
    def setUp(self):
        self.stub = definitions(ast.parse(STUB.read_text()).body)

    def test_names(self):
        self.assertEqual({name for name in self.stub if is_public(name)}, {name for name in vars(_core) if is_public(name)})

    def test_kinds(self):
        for name in filter(is_public, self.stub):
            value, kind = getattr(_core, name), type(self.stub[name])
            expected = ast.ClassDef if isinstance(value, type) else ast.FunctionDef if callable(value) else ast.AnnAssign
            self.assertIs(kind, expected, name)

    def test_members(self):
        own = {"__doc__", "__module__", "__new__", "__weaklistoffset__", "__getattribute__", "__dict__", "__weakref__"}
        for name, node in self.stub.items():
            if is_public(name) and isinstance(node, ast.ClassDef):
                there = {member for member in vars(getattr(_core, name)) if member not in own}
                # Methods that take a buffer are seen from Python 3.12 on.
                bases = [self.stub[base.id].body for base in node.bases if isinstance(base, ast.Name) and base.id in self.stub]
                said = {member for body in [node.body, *bases] for member in definitions(body) if member not in {*own, "__buffer__"}}
                self.assertEqual(said, there - {"__buffer__", "__release_buffer__"}, name)


class Modules(unittest.TestCase):
    def test_no_circles(self):
        """Imports within functions and for types count too."""
        modules = {path.stem: ast.parse(path.read_text()) for path in PACKAGE.glob("*.py")}
        imports = {name: {found for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.level == 1
                          for found in ([node.module] if node.module else [alias.name for alias in node.names])} & set(modules)
                   for name, module in modules.items()}
        try:
            list(graphlib.TopologicalSorter(imports).static_order())
        except graphlib.CycleError as circle:
            self.fail(" <- ".join(circle.args[1]))


class Docstrings(unittest.TestCase):
    def test_all_that_is_public(self):
        for path in (*sorted(PACKAGE.glob("*.py")), STUB):
            module = ast.parse(path.read_text())
            self.assertIsNotNone(ast.get_docstring(module), path.name)
            with self.subTest(path.name):
                self.assertEqual([], list(self.without(module.body, "")))

    def without(self, body, prefix):
        """What has none, by its path in the module."""
        for node in body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or not is_public(node.name):
                continue
            is_overload = any(isinstance(d, ast.Name) and d.id == "overload" for d in getattr(node, "decorator_list", ()))
            if ast.get_docstring(node) is None and not is_overload:
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from self.without(node.body, f"{prefix}{node.name}.")


class Checked(unittest.TestCase):
    def test_marker(self):
        self.assertTrue((PACKAGE / "py.typed").exists())

    @unittest.skipIf(command() is None, "no mypy, or one below 1.0")
    def test_by_mypy(self):
        programs = [HERE / "typed_program.py"]
        # Which errors of torch's own types are to be ignored depends on its version, and on mypy's.
        config = "[mypy]\n[mypy-ml_dtypes.*]\nignore_missing_imports = True\n"
        if importlib.util.find_spec("torch") is not None:
            programs.append(HERE / "typed_torch_program.py")
        else:
            config += "[mypy-torch.*]\nignore_missing_imports = True\n"
            config += "".join(f"[mypy-feedlane.{name}]\nignore_errors = True\n" for name in OF_TORCH)
        with tempfile.TemporaryDirectory() as folder:
            settings = os.path.join(folder, "mypy.ini")
            with open(settings, "w") as file:
                file.write(config)
            words = [*command(), "--no-warn-unused-ignores", "--config-file", settings, "--cache-dir", os.path.join(folder, "cache"), PACKAGE, *programs]
            said = subprocess.run(words, capture_output=True, text=True, cwd=folder,
                                  env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)

    def test_programs_run(self):
        subprocess.run([sys.executable, "-B", HERE / "typed_program.py"], check=True, timeout=120)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
