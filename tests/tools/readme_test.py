#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/readme.py: what it makes a script of, and that the packages' READMEs lead to a first program.

Usage: readme_test.py tools/readme.py README...
"""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(sys.argv[1])
READMES = [os.path.abspath(path) for path in sys.argv[2:]]
del sys.argv[1:]

README = """# Title

Needs a shell:

```sh
cd "$FOLDER"
words='one two'
```

    cat an indented block is only shown

A snippet that is no file, `shown.txt`

```text
no output
```

Save this as `program.sh`, not as `other.sh`... no: as `program.sh`:

```python
echo "$1" '$HOME' `echo \\\\`
```

```sh
sh program.sh "$words"
```

```text
one two $HOME \\
```

```sh
false, and never run
```
"""


def readme_py(path, *options):
    return subprocess.run([sys.executable, "-B", SCRIPT, path, *options], capture_output=True, text=True, check=False)


class Readme(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "README.md")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_commands_and_program_up_to_the_first_run(self):
        self.write(README)
        script = readme_py(self.path)
        self.assertEqual(script.returncode, 0, script.stderr)
        environment = os.environ | {"FOLDER": self.folder}
        ran = subprocess.run(["bash"], input=script.stdout, capture_output=True, text=True, env=environment, check=False)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout, "-- first program\n" + readme_py(self.path, "--output").stdout)
        with open(os.path.join(self.folder, "program.sh"), encoding="utf-8") as file:
            self.assertEqual(file.read(), readme_py(self.path, "--program").stdout)

    def test_a_command_that_fails_ends_it(self):
        self.write(README.replace("words=", "false\nwords="))
        ran = subprocess.run(["bash"], input=readme_py(self.path).stdout, capture_output=True, text=True,
                             env=os.environ | {"FOLDER": self.folder}, check=False)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))

    def test_output_may_be_left_out(self):
        self.write(README.replace("```text\none", "```\none"))
        self.assertEqual(readme_py(self.path, "--output").stdout, "")

    def test_without_a_program_or_its_run_it_is_refused(self):
        for text, reason in (
            (README.replace("`program.sh`:", "`program.sh`."), "saved to a file"),
            (README[: README.index("```sh\nsh program")], "runs the program"),
        ):
            self.write(text)
            refused = readme_py(self.path)
            self.assertEqual((refused.returncode, refused.stdout), (1, ""))
            self.assertIn(reason, refused.stderr)

    def test_packages(self):
        for path in READMES:
            with self.subTest(path):
                script = readme_py(path)
                self.assertEqual(script.returncode, 0, script.stderr)
                checked = subprocess.run(["bash", "-n"], input=script.stdout, capture_output=True, text=True, check=False)
                self.assertEqual((checked.returncode, checked.stderr), (0, ""))
                self.assertNotEqual(readme_py(path, "--output").stdout, "", "what the program prints")


if __name__ == "__main__":
    unittest.main()
