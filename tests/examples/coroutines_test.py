# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/coroutines.cpp promises: the sum of the squares below 1000, by epoll without a timeout: a lost wake-up
hangs it. Usage: coroutines_test.py COROUTINES"""
import subprocess
import sys

output = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True, timeout=120).stdout
assert output == f"{sum(n * n for n in range(1000))}\n", output
