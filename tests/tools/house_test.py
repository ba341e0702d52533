#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/house.py: each check finds what it is there for, in a tree of made-up sources, and nothing in one that is in order.

Usage: house_test.py tools/house.py tools/class_sizes.py
"""

import os
import sys
import tempfile
import unittest

HOUSE = sys.argv[1]
sys.path.insert(0, os.path.dirname(os.path.abspath(HOUSE)))

import class_sizes  # noqa: E402
import house  # noqa: E402

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = """
#define NOT_COUNTED(x) struct x { int a; }
namespace a::b {
using Pair = std::pair<int, int>;
enum class Kind { one, two };
class Forward;
// class Commented { int x; };
class Plenty final : public Base<int>, private Other {
 public:
  explicit Plenty(int a, std::function<void(int)> f = [](int) { return; }) : a_(a), f_{std::move(f)} { start(); }
  Plenty(const Plenty&) = delete;
  Plenty& operator=(const Plenty&) = delete;
  ~Plenty() override;
  bool operator==(const Plenty&) const = default;
  explicit operator bool() const { return a_ != 0; }
  friend void swap(Plenty&, Plenty&);
  static Status create(const char* text, std::unique_ptr<Plenty>& out);     // 1
  [[nodiscard]] int a() const { if (a_ == 1) { return 2; } return a_; }      // 2
  virtual std::map<int, std::vector<int>> pure(int x = sizeof(int)) = 0;    // 3
  template <class F, std::enable_if_t<(sizeof(F) > 1), int> = 0>
  void each(F&& f) { for (int i = 0; i < a_; i++) f(i); }                   // 4
  auto trailing() const -> std::vector<int>;                                // 5
  int overloaded();                                                         // 6
  int overloaded() const noexcept;                                          // 7

  struct Inner {
    int x = 1, y{2};                                                        // two
    char text[16] = {};                                                     // three
    bool is_one() const { return x == 1; }
  };
  enum State : int { idle, busy };
  using Callback = void (*)(int);

 private:
  class Hidden;
  static constexpr int limit = 5;
  static int shared_;
  int a_ = (1 + 2);                                                         // 1
  std::function<void(int)> f_;                                              // 2
  std::vector<Inner> inners_{Inner{}, Inner{}};                             // 3
  alignas(64) std::atomic<std::uint64_t> at_{0};                            // 4
  const char* name_ = "a { struct; } // no comment";                        // 5
  unsigned bits_ : 3 = 1;                                                   // 6
  Callback callback_ = nullptr;                                             // 7
  struct { int hidden; } unnamed_;                                          // 8
};
template <class T>
struct Values {
  T x;
  T y;
  [[nodiscard]] T sum() const { return x + y; }
};
inline int free_function(int x) { struct Local { int a; }; return x; }
}  // namespace a::b
"""


class Counter(unittest.TestCase):
    def setUp(self):
        self.found = {c.name: c for c in class_sizes.classes_of(HEADER)}

    def test_methods_are_counted_without_constructors_destructors_operators_and_friends(self):
        self.assertEqual(
            self.found["Plenty"].methods, ["create", "a", "pure", "each", "trailing", "overloaded", "overloaded"]
        )

    def test_members_are_counted_without_static_ones(self):
        self.assertEqual(
            self.found["Plenty"].members,
            ["a_", "f_", "inners_", "at_", "name_", "bits_", "callback_", "unnamed_"],
        )

    def test_a_nested_class_has_members_of_its_own(self):
        self.assertEqual(self.found["Plenty::Inner"].members, ["x", "y", "text"])
        self.assertEqual(self.found["Plenty::Inner"].methods, ["is_one"])

    def test_definitions_are_found_and_declarations_macros_and_comments_are_not(self):
        self.assertEqual(set(self.found), {"Plenty", "Plenty::Inner", "Values"} | {c for c in self.found if "unnamed" in c})

    def test_a_struct_of_values_is_one_that_no_method_changes(self):
        self.assertTrue(self.found["Values"].is_plain())
        self.assertTrue(self.found["Plenty::Inner"].is_plain())
        self.assertFalse(self.found["Plenty"].is_plain())


class Checks(unittest.TestCase):
    """Each check, by a tree of its own."""

    def found(self, check, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return list(check(root))

    def test_a_file_of_any_room_has_its_limit(self):
        for room in house.ROOMS:
            self.assertEqual(self.found(house.files_fit_in_the_head, {room + "/a.cpp": "\n" * house.MAX_LINES}), [])
            too_long = self.found(house.files_fit_in_the_head, {room + "/a.cpp": "\n" * (house.MAX_LINES + 1)})
            self.assertEqual(len(too_long), 1)

    def test_a_file_says_what_lives_there(self):
        check = house.files_say_what_lives_there
        for text in (LICENCE + "// Two words.\n", "/* SPDX-License-Identifier: Apache-2.0 */\n/* Two. */\n",
                     "/* SPDX-License-Identifier: Apache-2.0\n * Two.\n */\n", LICENCE + "\n//! Rust's.\n",
                     "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n# Two words.\n",
                     "# SPDX-License-Identifier: Apache-2.0\n\"\"\"Two words.\"\"\"\n"):
            self.assertEqual(self.found(check, {"tests/a.cpp": text}), [], text)
        for text in (LICENCE + "#include <a>\n", LICENCE + "#pragma once\n", LICENCE, LICENCE + "\nint a;\n// b\n"):
            self.assertEqual(len(self.found(check, {"tests/a.cpp": text})), 1, text)

    def test_an_include_against_the_direction_is_found(self):
        check = house.includes_go_one_way
        sources = {"lib/os/a.hpp": "", "lib/shm/a.hpp": '#include "os/a.hpp"\n#include <vector>\n'}
        self.assertEqual(self.found(check, sources), [])
        sources["lib/os/b.cpp"] = '\n#include "shm/a.hpp"\n'
        self.assertEqual(len(self.found(check, sources)), 1)
        self.assertIn("lib/os/b.cpp:2", self.found(check, sources)[0])

    def test_a_program_stands_on_the_public_headers(self):
        sources = {"lib/os/a.hpp": "", "examples/a.c": '#include "feedlane.h"\n#include <feedlane/batch.hpp>\n'}
        self.assertEqual(self.found(house.includes_go_one_way, sources), [])
        sources["examples/a.c"] += '#include "os/a.hpp"\n'
        self.assertEqual(len(self.found(house.includes_go_one_way, sources)), 1)

    def test_the_library_includes_the_public_c_headers_and_no_others(self):
        sources = {"lib/ring/a.hpp": '#include "feedlane.h"\n#include "feedlane/status.h"\n',
                   "include/feedlane/a.hpp": '#include "feedlane/status.h"\n#include <feedlane.h>\n',
                   "include/feedlane/status.h": '#include "feedlane/error.hpp"\n'}
        self.assertEqual(len(self.found(house.includes_go_one_way, sources)), 1)
        sources["lib/ring/a.hpp"] += '#include "feedlane/ring.hpp"\n'
        self.assertEqual(len(self.found(house.includes_go_one_way, sources)), 2)

    def test_the_library_includes_nothing_of_the_c_interface_s_room(self):
        sources = {"lib/os/a.hpp": '#include "capi/checks.hpp"\n'}
        self.assertEqual(len(self.found(house.includes_go_one_way, sources)), 1)

    def test_a_room_without_a_row_is_found(self):
        self.assertEqual(len(self.found(house.includes_go_one_way, {"lib/attic/a.hpp": ""})), 1)

    def test_python_s_core_has_the_c_headers_and_its_own(self):
        check, core = house.python_core_sees_the_c_headers, house.PYTHON_CORE
        sources = {f"{core}/own.hpp": "", f"{core}/a.cpp": '#include <Python.h>\n#include "own.hpp"\n#include "feedlane.h"\n'
                   '#include "feedlane/loader.h"\n'}
        self.assertEqual(self.found(check, sources), [])
        for wrong in '"tensors/dlpack_abi.hpp"', "<os/fd.hpp>", '"handle.hpp"', '"../../handle.hpp"', '"feedlane/row.hpp"':
            sources[f"{core}/a.cpp"] = f"#include {wrong}\n"
            self.assertEqual(len(self.found(check, {**sources, "capi/handle.hpp": ""})), 1, wrong)

    def test_modules_that_use_each_other_are_found(self):
        python, rust = "capi/python/feedlane/", "capi/rust/feedlane/src/"
        files = {python + "__init__.py": "from .a import A\nfrom . import b", python + "b.py": "",
                 python + "a.py": "from typing import TYPE_CHECKING\nfrom . import _core, b\nif TYPE_CHECKING:\n    from .c import C\n",
                 python + "c.py": "def f():\n    from . import a", rust + "lib.rs": "mod a;\nuse crate::b::B;",
                 rust + "a.rs": "use crate::b::B; // crate::lib", rust + "b.rs": "/// crate::a\nuse crate::sys;"}
        self.assertEqual(self.found(house.modules_have_no_circles, files), [])
        wrong = {**files, python + "b.py": "def f():\n    from . import c"}
        self.assertEqual(self.found(house.modules_have_no_circles, wrong), ["capi/python/feedlane: modules that use each other: a, b, c"])
        wrong = {**files, rust + "b.rs": "fn f() { crate::a::g() }"}
        self.assertEqual(self.found(house.modules_have_no_circles, wrong), ["capi/rust/feedlane/src: modules that use each other: a, b"])

    def test_a_class_has_its_limits(self):
        check = house.classes_are_small
        methods, members = house.MOST

        def header(kind, name, of_methods, of_members, path="lib/os/a.hpp"):
            body = "".join(f"void f{i}();" for i in range(of_methods)) + "".join(f"int m{i};" for i in range(of_members))
            return {path: f"{kind} {name} {{ {body} }};"}

        self.assertEqual(self.found(check, header("class", "Any", methods, members)), [])
        self.assertEqual(len(self.found(check, header("class", "Any", methods + 1, members))), 1)
        self.assertEqual(len(self.found(check, header("class", "Any", methods, members + 1))), 1)
        self.assertEqual(len(self.found(check, header("struct", "Any", 1, members + 1))), 1)
        self.assertEqual(self.found(check, header("struct", "Any", 0, members + 1)), [])
        for name, (methods, members) in house.OTHERWISE.items():
            path, name = name.split(": ")
            self.assertEqual(self.found(check, header("class", name, methods, members, path)), [])
            self.assertEqual(len(self.found(check, header("class", name, methods + 1, members + 1, path))), 2)

    def test_a_difference_tested_all_over_is_found_in_code_alone(self):
        check = house.differences_are_types
        code = "if (config.iterable) return FEEDLANE_START_FORK;\n"
        self.assertEqual(self.found(check, {"lib/loader/a.cpp": code * 5 + "// iterable\n/* iterable\niterable */\n"}), [])
        self.assertEqual(len(self.found(check, {"lib/loader/a.cpp": code * 5 + "iterable;\n"})), 1 + 11)
        self.assertEqual(self.found(check, {"lib/loader/shard_order.cpp": code * 9, "lib/os/a.cpp": code * 9}), [])

    def test_an_atomic_without_its_order_is_found(self):
        check = house.atomics_name_their_order
        self.assertEqual(self.found(check, {"lib/os/a.cpp": "a.store(f(1), std::memory_order_release);"}), [])
        self.assertEqual(len(self.found(check, {"lib/os/a.cpp": "a.store(f(1));"})), 1)

    def test_a_descriptor_that_is_not_made_in_os_is_found_and_a_variable_that_a_user_may_set(self):
        check = house.descriptors_come_from_one_room
        for call in ("::eventfd(0, 0)", "::socket(AF_UNIX, 0, 0)", "::fcntl(fd, F_DUPFD_CLOEXEC, 0)", "::open(path, 0)"):
            self.assertEqual(len(self.found(check, {"lib/loader/a.cpp": call})), 1, call)
            self.assertEqual(self.found(check, {"lib/os/a.cpp": call}), [])
        self.assertEqual(self.found(check, {"lib/loader/a.cpp": "os::socket(1); a.open(2);  // ::open(path)"}), [])
        self.assertEqual(len(self.found(check, {"lib/os/a.cpp": 'std::getenv("PATH")'})), 1)
        self.assertEqual(self.found(check, {"lib/os/a.cpp": '::secure_getenv("PATH")'}), [])

    def test_a_missing_licence_and_what_is_left_over_are_found(self):
        self.assertEqual(len(self.found(house.sources_name_their_licence, {"lib/os/a.cpp": "\n"})), 1)
        self.assertEqual(len(self.found(house.nothing_is_left_over, {"lib/os/a.cpp": "// TO" + "DO\n"})), 1)

    def test_a_page_that_names_what_is_not_there_is_found(self):
        sources = {page: "`Ring::push` in `lib/os/a.hpp`\n" for page in house.PAGES}
        sources["lib/os/a.hpp"] = "class Ring { void push(); };"
        self.assertEqual(self.found(house.pages_name_what_exists, sources), [])
        sources["lib/os/a.hpp"] = "class Ring { void pop(); };  // push"
        self.assertEqual(len(self.found(house.pages_name_what_exists, sources)), len(house.PAGES))
        del sources["lib/os/a.hpp"]
        self.assertEqual(len(self.found(house.pages_name_what_exists, sources)), 2 * len(house.PAGES))

    def test_a_function_that_too_few_call_is_found(self):
        files = {"capi/feedlane.map": "FEEDLANE_1 {\n  global:\n    feedlane_two;\n    feedlane_one;\n    feedlane_shown;\n};\n",
                 "capi/python/core/a.cpp": "feedlane_two(); feedlane_one(); feedlane_shown();", "capi/go/a.go": "C.feedlane_two()",
                 "capi/go/a_test.go": "C.feedlane_one()", "examples/c/a.c": "feedlane_shown();"}
        found = self.found(house.functions_have_users, files)
        self.assertEqual(found, ["include: feedlane_one is called by 1 packages, and no example"])
        names = [f"feedlane_{i}" for i in range(house.MOST_FUNCTIONS + 1)]
        files = {"capi/feedlane.map": "".join(f"    {name};\n" for name in names),
                 "capi/python/core/a.cpp": " ".join(names), "capi/go/a.go": " ".join(names)}
        self.assertEqual(len(self.found(house.functions_have_users, files)), 1)

    def test_a_command_that_cannot_be_run_is_found(self):
        self.assertEqual(len(self.found(house.commands_can_be_run, {})), len(house.COMMANDS))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
