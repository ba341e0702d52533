# SPDX-License-Identifier: Apache-2.0
# The program of workers that get their data set serialized. Arguments: its kind, then the trainer's LOAD_PATH.
kind = popfirst!(ARGS)
append!(empty!(LOAD_PATH), ARGS)
using Feedlane
Feedlane.job_main(kind != "samples", kind == "saving-shards")
