// SPDX-License-Identifier: Apache-2.0
// Inputs are copied, never kept: what a configuration pointed to may be gone when create returns.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Everything a configuration points to, in memory of its own that is overwritten and freed after create.
struct Fleeting {
  explicit Fleeting(std::int32_t workers) {
    program = worker_program;
    words = {program.data(), form.data(), nullptr};
    settings = {setting.data(), nullptr};
    fields.push_back(field(index_name.data(), int64_type));
    fields.push_back(field(omp_name.data(), int64_type));
    plan = std::make_unique<Plan>();
    plan->fail_index = 3;
    sampler = sequential(6);
    config = fresh<feedlane_loader_config>();
    config.sampler = sampler.get();
    config.fields = fields.data();
    config.field_count = 2;
    config.has_seed = 1;
    config.workers = workers;
    if (workers != 0) config.argv = words.data();
    if (workers != 0) config.envp = settings.data();
    if (workers == 0) config.dataset = &table;
    config.worker_config = plan.get();
    config.worker_config_bytes = sizeof *plan;
  }
  ~Fleeting() {
    for (std::string* s : {&program, &form, &setting, &index_name, &omp_name}) s->assign(s->size(), '#');
    plan->magic = 0;
    plan->fail_index = 0;
    table.get = nullptr;
  }
  std::string program, form = "get", setting = "OMP_NUM_THREADS=6", index_name = "index", omp_name = "omp";
  std::vector<const char*> words, settings;
  std::vector<feedlane_field> fields;
  std::unique_ptr<Plan> plan;
  feedlane_dataset table = scripted_dataset();
  Sampler sampler;
  feedlane_loader_config config;
};

}  // namespace

// promise: config-fixed
TEST_CASE("a loader does not use the memory of its configuration after create") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    feedlane_loader* handle = nullptr;
    {
      const Fleeting input(workers);
      REQUIRE(feedlane_loader_create(&input.config, &handle, nullptr) == FEEDLANE_OK);
    }
    const Loader l(handle);
    begin(l.get(), 0);
    for (std::int64_t i = 0; i < 6; i++) {
      const Taken t = take(l.get());
      CHECK(t.status == (i == 3 ? FEEDLANE_E_SAMPLE : FEEDLANE_OK));
      if (i == 3) continue;
      CHECK(t.names == std::vector<std::string>{"index", "omp"});
      CHECK(t.value("index") == i);
      if (workers != 0) CHECK(t.value("omp") == 6);
    }
    CHECK(take(l.get()).status == FEEDLANE_END);
  }
}

// promise: loader-copies-sampler
TEST_CASE("a loader has its own sampler: the definition is copied, but not the position") {
  Setup s(5);
  std::int64_t indices[3] = {};
  std::uint64_t got = 0;
  REQUIRE(feedlane_sampler_next(s.sampler.get(), indices, 3, &got, nullptr) == FEEDLANE_OK);
  const Loader l = s.create();
  REQUIRE(feedlane_sampler_next(s.sampler.get(), indices, 1, &got, nullptr) == FEEDLANE_OK);
  CHECK(indices[0] == 3);
  begin(l.get(), 0);
  CHECK(take(l.get()).indices == std::vector<std::int64_t>{0});
  REQUIRE(feedlane_sampler_next(s.sampler.get(), indices, 1, &got, nullptr) == FEEDLANE_OK);
  CHECK_MESSAGE(indices[0] == 4, "and the user's doesn't move when the loader goes on");
  s.sampler.reset();
  CHECK(take_rest(l.get()).size() == 4);
  check_sequence(take_epoch(l.get(), 1), 5, 1);
}

// promise: loader-copies-sampler
TEST_CASE("one sampler serves several loaders") {
  Setup a(30, 4);
  a.sampler = shuffled(30, 2);
  Setup b(30, 4);
  b.connect();
  const Loader la = a.create();
  b.config.sampler = a.sampler.get();
  feedlane_loader* handle = nullptr;
  REQUIRE(feedlane_loader_create(&b.config, &handle, nullptr) == FEEDLANE_OK);
  const Loader lb(handle);
  const std::vector<Taken> of_a = take_epoch(la.get(), 0);
  const std::vector<Taken> of_b = take_epoch(lb.get(), 0);
  REQUIRE(of_a.size() == of_b.size());
  for (std::size_t i = 0; i < of_a.size(); i++) CHECK(of_a[i].indices == of_b[i].indices);
}
