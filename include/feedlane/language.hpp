// SPDX-License-Identifier: Apache-2.0
/**
 * @file language.hpp
 * Compiler requirements of the C++ interface. It needs C++20; with an older standard these headers declare nothing.
 * Exceptions are optional. With -fno-exceptions, functions that throw print the error and abort instead; functions that
 * take an Error& are unaffected.
 */
#pragma once

/** @{ 1 or 0: whether the language standard is C++20 or later, and whether exceptions are enabled. */
#if __cplusplus > 201703L
#define FEEDLANE_CXX20 1
#else
#define FEEDLANE_CXX20 0
#error "Feedlane's C++ interface needs C++20 (-std=c++20); the C interface, feedlane.h, works with every standard"
#endif

#if defined(__cpp_exceptions)
#define FEEDLANE_EXCEPTIONS 1
#else
#define FEEDLANE_EXCEPTIONS 0
#endif
/** @} */
