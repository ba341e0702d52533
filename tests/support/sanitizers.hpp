// SPDX-License-Identifier: Apache-2.0
// Whether AddressSanitizer or ThreadSanitizer is in: gcc says so by a macro, clang by a feature.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEEDLANE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FEEDLANE_TEST_SANITIZED 1
#endif
#endif
#ifndef FEEDLANE_TEST_SANITIZED
#define FEEDLANE_TEST_SANITIZED 0
#endif
