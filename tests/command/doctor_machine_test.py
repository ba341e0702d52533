# SPDX-License-Identifier: Apache-2.0
"""`feedlane doctor` names the limits of a machine, lowered or written into files, that loaders suffer from.
Usage: doctor_machine_test.py PATH_OF_FEEDLANE"""
import pathlib
import resource
import sys
import tempfile
import unittest

from doctors import CHECKS, doctor, run

FEEDLANE = sys.argv.pop(1)
GIB = 2**30


def check_of(found, name):
    (check,) = [check for check in found["machine"] if check["check"] == name]
    return check


class Limits(unittest.TestCase):
    """Of this command's own process, lowered before it starts."""

    def lowered(self, which, soft, hard=None):
        def lower():
            resource.setrlimit(which, (soft, resource.getrlimit(which)[1] if hard is None else hard))
        return doctor(FEEDLANE, "--root", "/", preexec_fn=lower)

    def test_descriptors(self):
        check = check_of(self.lowered(resource.RLIMIT_NOFILE, 40), "descriptors")
        self.assertEqual((check["state"], check["found"], check["unit"]), ("problem", 40, "descriptors"))
        self.assertGreaterEqual(check["needed"], 80)
        self.assertRegex(check["advice"], "^ulimit -n [0-9]+ in the shell that starts the trainer$")
        hard = check_of(self.lowered(resource.RLIMIT_NOFILE, 40, 40), "descriptors")
        self.assertIn("raise the hard limit of 40", hard["advice"])
        enough = check_of(self.lowered(resource.RLIMIT_NOFILE, check["needed"]), "descriptors")
        self.assertEqual((enough["state"], enough["advice"]), ("ok", ""))

    def test_descriptors_in_words(self):
        done = run(FEEDLANE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, r"(?m)^  problem  descriptors +40 +needs [0-9]+ ")

    def test_sizes(self):
        # The file's limit is checked by the command's own segment too: it is to be reported, not to end the command.
        found = self.lowered(resource.RLIMIT_FSIZE, 1024)
        check = check_of(found, "file_size")
        self.assertEqual((check["state"], check["found"]), ("warning", 1024))
        self.assertEqual(check_of(found, "memfd")["state"], "problem")
        self.assertIn("ulimit -v unlimited", check_of(self.lowered(resource.RLIMIT_AS, GIB), "address_space")["advice"])


class Machine(unittest.TestCase):
    """Files of /proc and /sys that a test has written."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.limits = {"Max open files": 1024, "Max processes": 1000, "Max locked memory": 8 << 20,
                       "Max file size": "unlimited", "Max address space": "unlimited"}
        self.write("proc/self/fd/0", "")
        self.write("proc/self/status", "Uid:\t1000\t1000\nThreads:\t1\nVmLck:\t0 kB\nCapEff:\t0000000000000000\n")
        self.write("proc/self/mountinfo", "22 27 0:21 / /proc rw,relatime - proc proc rw\n")
        self.write("proc/self/cgroup", "0::/user/job\n")
        self.meminfo(MemTotal=16 << 20, MemAvailable=8 << 20)
        self.write("proc/sys/vm/overcommit_memory", "0\n")
        self.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n")
        self.write("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="ascii")

    def meminfo(self, **kib):
        self.write("proc/meminfo", "".join(f"{name}:  {number} kB\n" for name, number in kib.items()))

    def group(self, path, **values):
        for name, value in values.items():
            self.write(f"sys/fs/cgroup/{path}/{name.replace('_', '.', 1)}", f"{value}\n")

    def check(self, name):
        self.write("proc/self/limits", "".join(f"{n:<25} {v:<20} {v:<20} units\n" for n, v in self.limits.items()))
        return check_of(doctor(FEEDLANE, "--root", self.root), name)

    def test_nothing_is_wrong(self):
        for name in CHECKS:
            if name not in ("kernel", "memfd", "pidfd", "membarrier"):  # the real kernel's
                check = self.check(name)
                self.assertEqual((name, check["state"], check["advice"]), (name, "ok", ""))

    def test_memory(self):
        self.meminfo(MemTotal=16 << 20, MemAvailable=512 << 10)
        check = self.check("memory")
        self.assertEqual((check["state"], check["found"], check["needed"]), ("warning", GIB // 2, 16 * GIB // 20))
        self.meminfo(MemTotal=16 << 20, MemAvailable=100 << 10)
        self.assertEqual(self.check("memory")["state"], "problem")

    def test_the_cgroup_that_leaves_least_memory(self):
        self.group("user/job", memory_max=4 * GIB, memory_high="max", memory_current=GIB, memory_stat="active_file 1000")
        self.group("user", memory_max=8 * GIB, memory_high=6 * GIB, memory_current=6 * GIB,
                   memory_stat=f"anon 1\ninactive_file {GIB // 8}\nactive_file {GIB // 8}")
        check = self.check("memory_limit")
        self.assertEqual((check["state"], check["found"], check["needed"]), ("warning", GIB // 4, 6 * GIB // 20))
        self.assertIn("cgroup /user", check["note"])
        self.assertIn("memory.max", check["advice"])
        self.group("user/job", memory_max=GIB + 1000, memory_events="low 0\noom 3\noom_kill 2")
        check = self.check("memory_limit")
        self.assertEqual((check["state"], check["found"]), ("problem", 2000))
        self.assertIn("killed 2 processes", check["note"])

    def test_cgroups_of_version_1(self):
        self.write("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n3:pids:/job\n0::/\n")
        self.group("memory/job", memory_limit_in_bytes=GIB, memory_usage_in_bytes=GIB, memory_stat="total_active_file 7")
        self.group("memory", memory_limit_in_bytes=2**63 - 4096, memory_usage_in_bytes=9 * GIB)
        self.group("cpu/job", cpu_cfs_quota_us=50000, cpu_cfs_period_us=100000)
        self.group("pids/job", pids_max=10, pids_current=10)
        self.assertEqual((self.check("memory_limit")["state"], self.check("memory_limit")["found"]), ("problem", 7))
        self.assertEqual(self.check("processors")["found"], 0.5)
        self.assertEqual((self.check("processes")["state"], self.check("processes")["found"]), ("problem", 0))

    def test_processors(self):
        self.group("user", cpu_max="75000 100000")
        self.group("user/job", cpu_max="max 100000")
        check = self.check("processors")
        self.assertEqual((check["state"], check["found"]), ("ok", 0.75))
        self.assertIn("0.75 by the quota of cgroup /user", check["note"])

    def test_processes(self):
        self.limits["Max processes"] = 8
        self.write("proc/7/status", "Uid:\t1000\t1000\nThreads:\t8\n")
        self.write("proc/8/status", "Uid:\t1001\t1001\nThreads:\t99\n")
        check = self.check("processes")
        self.assertEqual((check["state"], check["found"]), ("problem", 0))
        self.assertIn("this user has 8 processes and threads", check["note"])
        self.group("user", pids_max="max", pids_current=5)
        self.limits["Max processes"] = 10000
        self.assertEqual(self.check("processes")["found"], 10000 - 8)

    def test_locked_memory(self):
        self.limits["Max locked memory"] = 65536
        check = self.check("locked_memory")
        self.assertEqual((check["state"], check["found"], check["needed"]), ("warning", 65536, 8 << 20))
        self.assertIn("ulimit -l 8192", check["advice"])
        self.write("proc/self/status", "CapEff:\t0000000000004000\n")
        self.assertEqual(self.check("locked_memory")["state"], "ok")

    def test_huge_pages(self):
        self.assertEqual(self.check("huge_pages")["found"], "advise")
        self.write("sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled", "always inherit [never]\n")
        self.assertEqual(self.check("huge_pages")["found"], "never")

    def test_strict_overcommit(self):
        self.write("proc/sys/vm/overcommit_memory", "2\n")
        self.meminfo(MemTotal=16 << 20, MemAvailable=8 << 20, CommitLimit=8 << 20, Committed_AS=5 << 20)
        self.assertEqual(self.check("overcommit")["state"], "ok")
        self.meminfo(MemTotal=16 << 20, MemAvailable=8 << 20, CommitLimit=8 << 20, Committed_AS=9 << 20)
        check = self.check("overcommit")
        self.assertEqual((check["state"], check["found"]), ("warning", 2))
        self.assertIn("vm.overcommit_memory=0", check["advice"])

    def test_ptrace(self):
        for scope, state, advice in ((0, "ok", ""), (1, "ok", "without sudo"), (3, "warning", "restart the machine")):
            self.write("proc/sys/kernel/yama/ptrace_scope", f"{scope}\n")
            check = self.check("ptrace")
            self.assertEqual((check["state"], check["found"]), (state, scope))
            self.assertIn(advice, check["advice"])

    def test_proc(self):
        self.write("proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw,hidepid=invisible,gid=5\n")
        self.assertEqual((self.check("proc")["state"], self.check("proc")["found"]), ("ok", "invisible"))
        (self.root / "proc/self/fd/0").unlink()
        (self.root / "proc/self/fd").rmdir()
        self.assertEqual(self.check("proc")["state"], "problem")


if __name__ == "__main__":
    unittest.main()
