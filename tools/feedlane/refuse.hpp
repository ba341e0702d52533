// SPDX-License-Identifier: Apache-2.0
// Reports wrong arguments.
#pragma once

#include <CLI/CLI.hpp>

// Prints why the arguments are wrong, and the nearest name for a misspelled command or option. Returns the exit status.
int refuse(const CLI::App& app, const CLI::ParseError& error);
