# SPDX-License-Identifier: Apache-2.0
"""Two machines within this one: each a network namespace and a process namespace, with a cable between them. They can be killed
whole. The file system is the same on both."""
import os
import subprocess
import sys

_ENTERED = "FEEDLANE_TEST_MACHINES"
_CABLE = """set -e
ip link set lo up
mount -t tmpfs none /run
mkdir /run/netns
ip netns add m0
ip netns add m1
ip link add c0 type veth peer name c1
ip link set c0 netns m0 name eth0
ip link set c1 netns m1 name eth0
for k in 0 1; do
  ip -n m$k addr add 10.77.0.$((k + 1))/24 dev eth0
  ip -n m$k link set eth0 up
  ip -n m$k link set lo up
done
for k in 0 1; do nsenter --net=/run/netns/m$k unshare --pid --fork --mount-proc --kill-child true; done
"""


def _unshare():
    return ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def enter():
    """Makes the two machines and starts this program again beside them. They end with it. Where the system forbids that it returns
    the reason; None: the machines are there."""
    if os.environ.get(_ENTERED):
        return None
    try:
        tried = subprocess.run([*_unshare(), "sh", "-c", _CABLE], capture_output=True, text=True)
    except FileNotFoundError as missing:
        return str(missing)
    if tried.returncode != 0:
        return f"no namespaces: {tried.stderr.strip()}"
    os.environ[_ENTERED] = "1"
    os.execvp("unshare", [*_unshare(), "sh", "-c", _CABLE + 'exec "$@"', "sh", sys.executable, "-B", *sys.argv])


class Machine:
    """A program on a machine, with all that it starts."""

    def __init__(self, number, command, env, out):
        """`number`: 0 or 1. Output goes to the file `out`."""
        where = ["nsenter", f"--net=/run/netns/m{number}", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        self.process = subprocess.Popen([*where, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                        env=dict(os.environ, **env, GLOO_SOCKET_IFNAME="eth0", PYTHONDONTWRITEBYTECODE="1"))

    def kill(self):
        """Ends every process of it at once: its first one is the init of the process namespace."""
        self.process.kill()
        self.process.wait()


    def signal(self, pid, number):
        """To a process that has this number on the machine."""
        (init,) = _children(self.process.pid)
        subprocess.run(["nsenter", f"--target={init}", "--pid", "--mount", "kill", f"-{int(number)}", str(pid)], check=True)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def address(number):
    return f"10.77.0.{number + 1}"
