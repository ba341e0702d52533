#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers on other machines, measured and disturbed. Network namespaces stand for the machines: the trainer's, with Ray's head and
no processor for Ray, and one for each node. Needs root, iproute2, iperf3, and a Python with ray and numpy. Run by
tools/try-machines.

Usage: machines.py [--library FILE] [--nodes N] [--rate MBIT] [--delay US] [--rounds N] PART...

Parts:
  rate   MB/s of batches of 1 MiB through relays, and its share of what iperf3 measures on the same link just before
  chaos  cuts links, kills relays, hosts and whole nodes during an epoch, and compares its batches with those of an inline run
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "10.77.0.1"
PORT = 6379


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options).stdout


class Machines:
    """Namespaces on one bridge, and Ray's processes in them."""

    def __init__(self, options):
        self.options, self.prefix = options, f"fl{os.getpid() % 10000}"
        self.environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        self.environment.update(RAY_DISABLE_USAGE_STATS="1", RAY_AUTH_MODE="disabled", FEEDLANE_LIBRARY=options.library,
                                PYTHONPATH=os.pathsep.join([str(ROOT / "capi/python"), str(ROOT / "tools/bench")]))
        self.temporary = f"/tmp/{self.prefix}"
        self.is_delayed = False

    def name(self, number):
        return f"{self.prefix}-{number}"

    def address(self, number):
        return f"10.77.0.{number + 1}"

    def __enter__(self):
        try:
            return self.make()
        except BaseException:
            self.__exit__()
            raise

    def make(self):
        run("ip", "link", "add", self.prefix, "type", "bridge")
        run("ip", "link", "set", self.prefix, "up")
        for number in range(self.options.nodes + 1):
            self.add(number)
        self.ray(0, "--head", "--port", PORT, "--num-cpus", 0, "--include-dashboard", "false", "--temp-dir", self.temporary)
        for number in range(1, self.options.nodes + 1):
            self.join(number)
        return self

    def add(self, number):
        name, inside, outside = self.name(number), "eth0", f"{self.prefix}e{number}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        run("ip", "link", "set", outside, "master", self.prefix, "up")
        run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", inside)
        for device in inside, "lo":
            run("ip", "-n", name, "link", "set", device, "up")
        rate = f"{self.options.rate}mbit"
        if self.options.delay:
            shape = "netem", "delay", f"{self.options.delay}us", "rate", rate
            self.is_delayed = subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inside, "root", *shape],
                                             stderr=subprocess.DEVNULL).returncode == 0
        if not self.is_delayed:  # a kernel without netem
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inside, "root", "tbf", "rate", rate, "burst", "1mb",
                "latency", "50ms")

    def inside(self, number, *command):
        return "ip", "netns", "exec", self.name(number), *map(str, command)

    def ray(self, number, *arguments):
        run(*self.inside(number, os.path.join(os.path.dirname(sys.executable), "ray"), "start", *arguments, "--node-ip-address",
                         self.address(number), "--object-store-memory", 400 << 20), env=self.environment)

    def join(self, number):
        self.ray(number, "--address", f"{HEAD}:{PORT}", "--num-cpus", self.options.cpus)

    def pids(self, number):
        return [int(pid) for pid in run("ip", "netns", "pids", self.name(number)).split()]

    def cut(self, number, is_cut):
        run("ip", "link", "set", f"{self.prefix}e{number}", "down" if is_cut else "up")

    def kill(self, number):
        for pid in self.pids(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(self, *_):
        for number in range(self.options.nodes + 1):
            for _ in range(20):
                if not self.pids(number):
                    break
                self.kill(number)
                time.sleep(0.05)
            subprocess.run(["ip", "netns", "del", self.name(number)])
        subprocess.run(["ip", "link", "del", self.prefix])
        subprocess.run(["rm", "-rf", self.temporary])

    def trainer(self, *arguments, **options):
        return subprocess.Popen(self.inside(0, sys.executable, "-B", ROOT / "tools/bench/machines_trainer.py", *arguments),
                                env=self.environment, stdout=subprocess.PIPE, text=True, **options)


def rate_of_iperf(machines):
    """MB/s from node 1 to the trainer."""
    server = subprocess.Popen(machines.inside(0, "iperf3", "-s", "-1"), stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    said = json.loads(run(*machines.inside(1, "iperf3", "-c", HEAD, "-t", 5, "-J")))
    server.wait()
    return said["end"]["sum_received"]["bits_per_second"] / 8e6


def said_by(output):
    """The line of JSON that the trainer prints."""
    for line in output.splitlines():
        if line.startswith("{"):
            return json.loads(line)
    sys.exit(f"the trainer has failed:\n{output}")


def rate(machines, options):
    shares = []
    for _ in range(options.rounds):
        link = rate_of_iperf(machines)
        with machines.trainer("rate", options.workers, 600) as trainer:
            said = said_by(trainer.stdout.read())
        shares.append(said["rate"] / link)
        print(f"iperf3 {link:.0f} MB/s, batches of 1 MiB {said['rate']:.0f} MB/s: {shares[-1]:.2f}; first batch {said['first']:.2f} s; "
              f"the trainer's processor time {said['cpu']:.0f} us a batch, its relays' {said['relays']:.0f}", flush=True)
    shares.sort()
    print(f"share of the link: {shares[len(shares) // 2]:.2f} [{shares[0]:.2f} .. {shares[-1]:.2f}]")


def chaos(machines, options):
    with machines.trainer("epoch", 0, options.batches) as trainer:
        calm = said_by(trainer.stdout.read())
    draw = random.Random(5)
    done = {"cut": 0, "relay": 0, "host": 0, "node": 0}
    wanted = {"cut": options.cuts, "relay": options.kills // 2, "host": options.kills - options.kills // 2,
              "node": options.node_kills}
    with machines.trainer("epoch", options.workers, options.batches) as trainer:
        lines = [trainer.stdout.readline()]  # the epoch has begun
        reader = threading.Thread(target=lambda: lines.extend(trainer.stdout))
        reader.start()
        while trainer.poll() is None and any(done[kind] < wanted[kind] for kind in wanted):
            kind = draw.choice([kind for kind in wanted if done[kind] < wanted[kind]])
            node = draw.randrange(1, options.nodes + 1)
            if kind == "cut":
                machines.cut(node, True)
                time.sleep(draw.choice([0.05, 0.2, 1.0]))
                machines.cut(node, False)
            elif kind == "node":
                machines.kill(node)
                machines.join(node)
            else:
                word = "_Relay" if kind == "relay" else "_Host"
                found = [pid for pid in machines.pids(0 if kind == "relay" else node) if word in command_of(pid)]
                if not found:
                    time.sleep(0.1)
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(found), signal.SIGKILL)
            done[kind] += 1
            time.sleep(draw.uniform(0.05, 0.4))
        reader.join()
    wild = said_by("".join(lines))
    print(f"{done['cut']} cut links, {done['relay']} killed relays, {done['host']} killed hosts, {done['node']} killed nodes: "
          f"{wild['batches']} batches, digest {'equal' if wild['digest'] == calm['digest'] else 'DIFFERENT'}, {wild['restarts']} workers "
          f"replaced, longest stall {wild['stall']:.1f} s")
    return wild["digest"] == calm["digest"]


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n", 1)[1])
    parser.add_argument("--library", default=str(ROOT / "build/capi/libfeedlane.so.1"))
    for name, value in (("nodes", 1), ("cpus", 2), ("workers", 2), ("rate", 2000), ("delay", 200), ("rounds", 3), ("batches", 20_000),
                        ("cuts", 200), ("kills", 200), ("node-kills", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("parts", nargs="+", choices=("rate", "chaos"))
    options = parser.parse_args()
    is_well = True
    with Machines(options) as machines:
        if options.delay and not machines.is_delayed:
            print("this kernel has no netem: the links have no delay", flush=True)
        for part in options.parts:
            is_well = {"rate": rate, "chaos": chaos}[part](machines, options) is not False and is_well
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
