# SPDX-License-Identifier: Apache-2.0
# The program of workers that get their data set serialized. Its arguments are the trainer's LOAD_PATH.
append!(empty!(LOAD_PATH), ARGS)
using Feedlane
Feedlane.job_main()
