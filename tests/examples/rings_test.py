# SPDX-License-Identifier: Apache-2.0
"""Two unrelated programs, a ring at a path: lines arrive in order; a killed receiver's path is taken over; a full house and
a path in use are refused by name."""
import os
import signal
import stat
import subprocess
import sys
import tempfile

RECEIVER, SENDER = sys.argv[1:3]
signal.alarm(120)  # nothing here may wait for ever


def listen(path, lanes="2"):
    receiver = subprocess.Popen([RECEIVER, path, lanes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "listening\n", receiver.stderr.read()
    return receiver


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "ring")

    receiver = listen(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, oct(os.stat(path).st_mode)
    text = "".join(f"line {i}\n" for i in range(1000))
    subprocess.run([SENDER, path], input=text, text=True, check=True, timeout=60)
    output, _ = receiver.communicate(timeout=60)
    assert output == "".join(f"lane 0: line {i}\n" for i in range(1000)), output[:200]
    assert receiver.returncode == 0
    assert not os.path.exists(path), "the path goes with the receiver"

    receiver = listen(path)
    second = subprocess.run([RECEIVER, path], capture_output=True, text=True, timeout=60)
    assert second.returncode == 1 and "E_STATE" in second.stderr and path in second.stderr, second.stderr
    receiver.send_signal(signal.SIGKILL)
    receiver.wait(60)
    assert os.path.exists(path), "a killed receiver leaves its path"
    nobody = subprocess.run([SENDER, path], input="x\n", capture_output=True, text=True, timeout=60)
    assert nobody.returncode == 1 and "E_PEER_DEAD" in nobody.stderr, nobody.stderr

    receiver = listen(path, "1")  # takes the dead one's path over
    first = subprocess.Popen([SENDER, path], stdin=subprocess.PIPE, text=True)
    first.stdin.write("here\n")
    first.stdin.flush()
    assert receiver.stdout.readline() == "lane 0: here\n"
    refused = subprocess.run([SENDER, path], input="x\n", capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "E_LIMIT" in refused.stderr, refused.stderr
    first.stdin.write("last words\n")
    first.stdin.flush()
    assert receiver.stdout.readline() == "lane 0: last words\n"
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    assert receiver.communicate(timeout=60)[0] == "", "END when the only sender has died"
    assert receiver.returncode == 0
print("rings at a path: in order, refused by name, taken over")
