// SPDX-License-Identifier: Apache-2.0
/**
 * @file language.hpp
 * What the C++ interface needs of the compiler: C++20; without it these headers declare nothing. Exceptions are optional:
 * with -fno-exceptions the functions that throw print the error and abort; those that take an Error& stay the same.
 */
#pragma once

/** @{ Whether the compiler's language is C++20 or later, and whether it has exceptions: 1 or 0. */
#if __cplusplus > 201703L
#define FEEDLANE_CXX20 1
#else
#define FEEDLANE_CXX20 0
#error "Feedlane's C++ interface needs C++20 (-std=c++20); the C interface, feedlane.h, is for every standard"
#endif

#if defined(__cpp_exceptions)
#define FEEDLANE_EXCEPTIONS 1
#else
#define FEEDLANE_EXCEPTIONS 0
#endif
/** @} */
