-- SPDX-License-Identifier: Apache-2.0
-- Trains softmax regression on the handwritten digits of examples/data. Workers are processes that run this program.
--
--     luajit digits.lua DATA_FOLDER [kill]        kill: a worker kills itself during the training; nothing is lost
local ffi = require("ffi")
local here = arg[0]:match("^(.*/)") or "./"
package.path = here .. "?.lua;" .. package.path
local feedlane = require("feedlane")
local K = feedlane.K
ffi.cdef("int getpid(void); int kill(int pid, int signal);")

local train, total, pixels, classes, epochs = 1437, 1797, 64, 10, 20

local function read(name, header)
  return assert(io.open(arg[1] .. "/" .. name, "rb")):read("*a"):sub(header + 1)
end
local images = read("optdigits-images-idx3-ubyte", 16)
local labels = read("optdigits-labels-idx1-ubyte", 8)

-- A row of a batch: x, float32 [64], and the label, int64.
local function write_row(x, label, row, index)
  for p = 0, pixels - 1 do x[row * pixels + p] = images:byte(index * pixels + p + 1) / 16 end
  label[row] = labels:byte(index + 1)
end

local function make(task, info)
  if arg[2] == "kill" and task.epoch == 1 and task.batch == 0 and task.attempt == 0 then
    io.stderr:write(("worker %d kills itself\n"):format(info.id))
    ffi.C.kill(ffi.C.getpid(), 9)
  end
  local x, label = ffi.cast("float *", task.tensors[0].data), ffi.cast("int64_t *", task.tensors[1].data)
  for row = 0, tonumber(task.count) - 1 do write_row(x, label, row, tonumber(task.indices[row])) end
end

local fd = feedlane.C.feedlane_worker_fd()
if fd >= 0 then return feedlane.work(fd, make) end

-- ---- the trainer ----

local w, out = ffi.new("double[?]", classes * (pixels + 1)), ffi.new("double[?]", classes)
local function predict(x)  -- the class probabilities of one sample, in `out`
  local most, sum = -math.huge, 0
  for c = 0, classes - 1 do
    local z = w[c * (pixels + 1) + pixels]
    for p = 0, pixels - 1 do z = z + w[c * (pixels + 1) + p] * x[p] end
    out[c], most = z, math.max(most, z)
  end
  for c = 0, classes - 1 do
    out[c] = math.exp(out[c] - most)
    sum = sum + out[c]
  end
  for c = 0, classes - 1 do out[c] = out[c] / sum end
end
local function learn(x, label)  -- returns the loss
  predict(x)
  local loss = -math.log(out[label])
  for c = 0, classes - 1 do
    local g = 0.05 * (out[c] - (c == label and 1 or 0))
    for p = 0, pixels - 1 do w[c * (pixels + 1) + p] = w[c * (pixels + 1) + p] - g * x[p] end
    w[c * (pixels + 1) + pixels] = w[c * (pixels + 1) + pixels] - g
  end
  return loss
end

local fields = ffi.new("feedlane_field[2]")
for i = 0, 1 do fields[i].size = ffi.sizeof("feedlane_field") end
fields[0].name, fields[0].dtype, fields[0].ndim, fields[0].shape[0] = "x", {2, 32, 1}, 1, pixels
fields[1].name, fields[1].dtype = "label", {0, 64, 1}
local argv = ffi.new("const char *[5]", {"luajit", arg[0], arg[1], arg[2]})
local loader = feedlane.loader({kind = K.SAMPLER_RANDOM, length = train, seed = 1}, {fields = fields, field_count = 2,
  batch_size = 32, workers = 2, keep_workers = 1, argv = argv})
for epoch = 0, epochs - 1 do
  local loss = 0
  for batch in feedlane.epoch(loader, epoch) do
    local x, label = ffi.cast("float *", batch.tensors[0].data), ffi.cast("int64_t *", batch.tensors[1].data)
    for row = 0, tonumber(batch.count) - 1 do loss = loss + learn(x + row * pixels, tonumber(label[row])) end
  end
  print(("epoch %2d, loss %.6f"):format(epoch, loss / train))
end

local x, label, right = ffi.new("float[?]", pixels), ffi.new("int64_t[1]"), 0
for index = train, total - 1 do
  write_row(x, label, 0, index)
  predict(x)
  local best = 0
  for c = 1, classes - 1 do if out[c] > out[best] then best = c end end
  if best == tonumber(label[0]) then right = right + 1 end
end
print(("test accuracy: %.3f"):format(right / (total - train)))
