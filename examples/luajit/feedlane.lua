-- SPDX-License-Identifier: Apache-2.0
-- Feedlane for LuaJIT: declares the installed feedlane.h and wraps the 17 functions that a binding needs.
local ffi = require("ffi")
local include = os.getenv("FEEDLANE_INCLUDE") or "/usr/include"
local C = ffi.load(os.getenv("FEEDLANE_LIBRARY") or "feedlane")
local K = {FOREVER = 0x7fffffffffffffffLL}  -- the header's constants, without their prefix
local function read(name)  -- a header, with those that it includes in their places, without comments
  local text = assert(io.open(include .. "/" .. name)):read("*a"):gsub("/%*.-%*/", ""):gsub("\\\n", " ")
  return (text:gsub('#include "(feedlane/%w+%.h)"', read))
end
local text = "\n" .. read("feedlane.h"):gsub("#ifdef __cplusplus.-#endif", ""):gsub("static inline.-\n}", "")
for name, number in text:gmatch("#define FEEDLANE_([%u%d_]+)%s+%(?(%-?%d+)%)?%s*\n") do K[name] = tonumber(number) end
ffi.cdef((text:gsub("\n%s*#[^\n]*", ""):gsub("FEEDLANE_API", ""):gsub("FEEDLANE_([%u_]+)", K)))
local function new(kind, members)  -- a struct that begins with its size
  members = members or {}
  members.size = ffi.sizeof(kind)
  return ffi.new(kind, members)
end
local err = new("feedlane_error")
local function check(s)
  return s >= 0 and s or error(ffi.string(C.feedlane_status_name(s)) .. ": " .. ffi.string(err.text), 2)
end
assert(C.feedlane_abi_version() == K.ABI, "the library and the header are of different ABIs")
-- Arguments: members of feedlane_sampler_config and of feedlane_loader_config.
local function loader(order, members)
  local sampler, made = ffi.new("feedlane_sampler *[1]"), ffi.new("feedlane_loader *[1]")
  check(C.feedlane_sampler_create(new("feedlane_sampler_config", order), sampler, err))
  members.sampler = sampler[0]
  local status = C.feedlane_loader_create(new("feedlane_loader_config", members), made, err)
  C.feedlane_sampler_destroy(sampler)
  return check(status) and ffi.gc(made, C.feedlane_loader_destroy)
end
-- `for batch in epoch(l, 0) do ... end`. Each batch is released when the next one is taken, or when it is collected.
local function epoch(l, number)
  check(C.feedlane_loader_begin(l[0], number, err))
  local function release(b) C.feedlane_batch_release(l[0], b.token); b.token = 0 end  -- no effect if it is 0
  local batch, status = ffi.gc(new("feedlane_batch"), release), nil
  return function()
    release(batch)
    repeat status = check(C.feedlane_loader_next(l[0], K.FOREVER, batch, err)) until status ~= K.INTERRUPTED
    return status == K.OK and batch or status ~= K.END and error(ffi.string(err.text), 2) or nil
  end
end
-- A worker's loop, with the descriptor of feedlane_worker_fd: `make(task, info)` writes the rows of each task.
local function work(fd, make)
  local w, task, info = ffi.new("feedlane_worker *[1]"), ffi.new("const feedlane_task *[1]"), new("feedlane_worker_info")
  check(C.feedlane_worker_attach(fd, nil, K.FOREVER, w, err))
  check(C.feedlane_worker_get_info(w[0], info))
  check(C.feedlane_worker_ready(w[0], K.OK, nil, err))
  repeat
    local status = check(C.feedlane_worker_next(w[0], K.FOREVER, task, err))
    if status == K.OK then
      local ok, why = pcall(make, task[0], info)
      if ok then C.feedlane_task_commit(task[0], task[0].count, err)
      else C.feedlane_task_fail(task[0], -1, 0, tostring(why), nil, err) end
    end
  until status == K.END
  C.feedlane_worker_destroy(w)
end
return {C = C, K = K, new = new, loader = loader, epoch = epoch, work = work}
