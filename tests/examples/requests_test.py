# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/requests.cpp promises: an answer to each request, also to one that no other follows.
Usage: requests_test.py REQUESTS [unittest's arguments]"""
import subprocess
import sys
import unittest

REQUESTS = sys.argv.pop(1)


def factor(number):
    return next((f for f in range(2, number) if f * f <= number and number % f == 0), number)


class Requests(unittest.TestCase):
    def test_each_request_is_answered_before_the_next_one_comes(self):
        for workers in "1", "2":
            with self.subTest(workers=workers), \
                    subprocess.Popen([REQUESTS, workers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
                for number in 91, 97, 1001:
                    program.stdin.write(f"{number}\n")
                    self.assertEqual(program.stdout.readline(), f"{number}: {factor(number)}\n")
                program.stdin.close()
                self.assertEqual((program.stdout.read(), program.wait()), ("", 0))

    def test_many_requests_at_once(self):
        numbers = range(2, 500)
        finished = subprocess.run([REQUESTS], input="\n".join(map(str, numbers)), capture_output=True, text=True, check=True)
        self.assertEqual(finished.stdout, "".join(f"{n}: {factor(n)}\n" for n in numbers))


if __name__ == "__main__":
    unittest.main()
