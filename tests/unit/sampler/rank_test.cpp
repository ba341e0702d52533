// SPDX-License-Identifier: Apache-2.0
// The rank and world size, found in launchers' environment variables.
#include "sampler/rank.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

using feedlane::Error;
using feedlane::sampler::detect_rank;
using feedlane::sampler::RankSource;

namespace {

using Variables = std::map<std::string, std::string>;

feedlane::Status detect(const Variables& variables, RankSource& found, Error& error) {
  return detect_rank(
      [&](const char* name) {
        const auto at = variables.find(name);
        return at == variables.end() ? nullptr : at->second.c_str();
      },
      found, error);
}

RankSource found_in(const Variables& variables) {
  RankSource found;
  Error error;
  REQUIRE_MESSAGE(detect(variables, found, error) == FEEDLANE_OK, error.text);
  return found;
}

void check_found(const Variables& variables, const char* source, std::int32_t rank, std::int32_t world) {
  const RankSource found = found_in(variables);
  CHECK(std::string(found.source) == source);
  CHECK(found.rank == rank);
  CHECK(found.world == world);
  CHECK(std::string(found.warning).empty());
}

void check_refused(const Variables& variables, const char* name, std::int64_t number, std::int64_t needed) {
  RankSource found;
  Error error;
  CHECK(detect(variables, found, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == name);
  CHECK(error.found == number);
  CHECK(error.needed == needed);
  CHECK_MESSAGE(std::string(error.text).find(name) != std::string::npos, error.text);
}

Variables task_of_slurm(Variables more = {}) {
  more.insert({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}});
  return more;
}

}  // namespace

// promise: rank-without-launcher
TEST_CASE("without a launcher the rank is 0 of 1 and its source is none") { check_found({}, "none", 0, 1); }

// promise: rank-sources
TEST_CASE("the variables of each launcher are recognized") {
  check_found({{"FEEDLANE_RANK", "1"}, {"FEEDLANE_WORLD_SIZE", "2"}}, "feedlane", 1, 2);
  check_found({{"RANK", "2"}, {"WORLD_SIZE", "3"}}, "torchrun", 2, 3);
  check_found({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, "openmpi", 3, 4);
  check_found({{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}}, "pmi", 4, 5);
  check_found({{"MV2_COMM_WORLD_RANK", "5"}, {"MV2_COMM_WORLD_SIZE", "6"}}, "mvapich", 5, 6);
  check_found({{"MVP_COMM_WORLD_RANK", "6"}, {"MVP_COMM_WORLD_SIZE", "7"}}, "mvapich", 6, 7);
  check_found({{"FLUX_TASK_RANK", "7"}, {"FLUX_JOB_SIZE", "8"}}, "flux", 7, 8);
  check_found(task_of_slurm(), "slurm", 3, 8);
  check_found({{"RANK", "2147483646"}, {"WORLD_SIZE", "2147483647"}}, "torchrun", 2147483646, 2147483647);
}

// promise: rank-sources
TEST_CASE("the first source in the documented order is used") {
  Variables all = task_of_slurm({{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}});
  check_found(all, "pmi", 3, 8);
  all.insert({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}});
  check_found(all, "openmpi", 3, 8);
  all.insert({{"RANK", "3"}, {"WORLD_SIZE", "8"}});
  check_found(all, "torchrun", 3, 8);
  all.insert({{"FEEDLANE_RANK", "3"}, {"FEEDLANE_WORLD_SIZE", "8"}});
  check_found(all, "feedlane", 3, 8);
}

// promise: rank-slurm
TEST_CASE("Slurm's variables are used only in a task of a step") {
  check_found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, "none", 0, 1);
  for (const char* step : {"4294967290", "4294967291", "4294967292", "4294967293", "interactive", "batch", ""}) {
    Variables v = task_of_slurm();
    v["SLURM_STEP_ID"] = step;
    check_found(v, "none", 0, 1);
  }
  for (const char* job : {"interactive", "bash"}) check_found(task_of_slurm({{"SLURM_JOB_NAME", job}}), "none", 0, 1);
  check_found(task_of_slurm({{"SLURM_JOB_NAME", "train"}}), "slurm", 3, 8);
}

TEST_CASE("a launcher that sets only the rank is refused, and not treated as rank 0 of 1") {
  check_refused({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-node1-7@1"}}, "FEEDLANE_WORLD_SIZE", 0, 1);
  check_refused({{"PALS_RANKID", "3"}}, "FEEDLANE_WORLD_SIZE", 0, 1);
  check_found({{"PALS_RANKID", "3"}, {"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}, "pmi", 3, 8);
  check_found(task_of_slurm({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}}), "slurm", 3, 8);
  // A shell of Slurm's has them and is one process.
  Variables shell = task_of_slurm({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "slurm.pmix.7.4294967290"}});
  shell["SLURM_STEP_ID"] = "4294967290";
  check_found(shell, "none", 0, 1);
  const RankSource found = found_in({{"PMIX_RANK", "0"}, {"PMI_RANK", "3"}, {"PMI_SIZE", "8"}});
  CHECK(std::string(found.warning) == "using rank 3 of 8 from pmi, but PMIX_RANK is 0");
}

TEST_CASE("a launcher that starts one torchrun for each node causes no warning") {
  // 8 nodes with 4 processes each.
  const Variables inner = {{"RANK", "14"}, {"WORLD_SIZE", "32"}, {"LOCAL_WORLD_SIZE", "4"}};
  check_found(task_of_slurm(inner), "torchrun", 14, 32);
  Variables more = inner;
  more.insert({{"OMPI_COMM_WORLD_RANK", "7"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"PMIX_RANK", "7"}});
  check_found(more, "torchrun", 14, 32);
  // Eight times torchrun, each for itself: every rank is told eight times.
  Variables alone = task_of_slurm({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}});
  CHECK(std::string(found_in(alone).warning).find("using rank 2 of 4 from torchrun, but SLURM_PROCID is 3") == 0);
  alone["LOCAL_WORLD_SIZE"] = "0";
  CHECK_FALSE(std::string(found_in(alone).warning).empty());
}

// promise: rank-one-source
TEST_CASE("a source with only one of its two variables is an error that names the missing one") {
  check_refused({{"FEEDLANE_RANK", "1"}}, "FEEDLANE_WORLD_SIZE", 0, 1);
  check_refused({{"FEEDLANE_WORLD_SIZE", "2"}}, "FEEDLANE_RANK", 0, 1);
  check_refused({{"WORLD_SIZE", "2"}}, "RANK", 0, 1);
  check_refused({{"RANK", "2"}, {"FEEDLANE_WORLD_SIZE", "2"}}, "FEEDLANE_RANK", 0, 1);
  check_refused({{"OMPI_COMM_WORLD_RANK", "0"}, {"WORLD_SIZE", "1"}}, "RANK", 0, 1);
  check_refused({{"PMI_SIZE", "2"}}, "PMI_RANK", 0, 1);
  check_refused({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}}, "SLURM_NTASKS", 0, 1);
}

// promise: rank-one-source
TEST_CASE("a value that is not a number between 0 and INT32_MAX is refused") {
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "-0", "0x1", "one", "1.0", "2147483648", "99999999999999999999"})
    check_refused({{"RANK", text}, {"WORLD_SIZE", "4"}}, "RANK", 0, 1);
  check_refused({{"RANK", "0"}, {"WORLD_SIZE", "four"}}, "WORLD_SIZE", 0, 1);
  check_refused({{"RANK", "0"}, {"WORLD_SIZE", std::string(1000, '9')}}, "WORLD_SIZE", 0, 1);
}

// promise: rank-one-source
TEST_CASE("a rank outside its world is refused with both numbers") {
  check_refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK", 4, 4);
  check_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE", 0, 1);
}

// promise: rank-disagreement
TEST_CASE("sources that disagree cause a warning with all four numbers, and the first source is used") {
  for (const Variables& other :
       {Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "8"}}, Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "2"}},
        Variables{{"PMI_RANK", "0"}}, Variables{{"PMI_RANK", "three"}, {"PMI_SIZE", "8"}}}) {
    Variables v = other;
    v.insert({{"RANK", "3"}, {"WORLD_SIZE", "8"}});
    const RankSource found = found_in(v);
    CHECK(std::string(found.source) == "torchrun");
    CHECK(found.rank == 3);
    CHECK(found.world == 8);
    CHECK(std::string(found.warning).find("using rank 3 of 8 from torchrun") == 0);
    CHECK(std::string(found.warning).find("PMI_RANK is " + v["PMI_RANK"]) != std::string::npos);
  }
}
