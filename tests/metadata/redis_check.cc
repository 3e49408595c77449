// SPDX-License-Identifier: Apache-2.0
#include "tests/metadata/redis_check.h"

namespace larder::conformance {
namespace {

constexpr const char* kCheck = R"lua(
local call = redis.call
local problem
local function expect(condition, text) if not condition and not problem then problem = text end end

local function check(base)
  local function members(part) return call('ZRANGE', base .. ':' .. part, 0, -1) end
  local function table_of(part)
    local flat, out, count = call('HGETALL', base .. ':' .. part), {}, 0
    for i = 1, #flat, 2 do out[flat[i]] = flat[i + 1]; count = count + 1 end
    return out, count
  end
  local meta = table_of('m')
  local used, gen = tonumber(meta.used), tonumber(meta.gen)
  expect(used <= tonumber(meta.pages), 'more pages used than there are')
  local place, total = {}, 0
  local function add(part, pages)
    for _, page in ipairs(pages) do
      expect(not place[page], 'page ' .. page .. ' is in ' .. part .. ' and ' .. tostring(place[page]))
      expect(tonumber(page) < used, 'page ' .. page .. ' in ' .. part .. ' was never used')
      place[page] = part
      total = total + 1
    end
  end
  add('f', call('LRANGE', base .. ':f', 0, -1))
  for _, part in ipairs({'r', 'q', 'v', 'i', 'w'}) do add(part, members(part)) end
  expect(total == used, used .. ' pages used, ' .. total .. ' known')

  local keys, key_count = table_of('k')
  local records = table_of('p')
  local children, named, seen = {}, 0, {}
  for page, packed in pairs(records) do
    local state, generation, key, parent = cmsgpack.unpack(packed)
    local is_stored = place[page] == 'v' or place[page] == 'i' or place[page] == 'w'
    expect((state == 's') == is_stored, 'page ' .. page .. ' has state ' .. state .. ' in ' .. tostring(place[page]))
    expect(is_stored or place[page] == 'r', 'page ' .. page .. ' has a record in ' .. tostring(place[page]))
    expect(not seen[generation] and tonumber(generation) < gen, 'generation ' .. generation .. ' twice or too large')
    seen[generation] = true
    local value = (state == 's' and 's' or 'r') .. page .. ' ' .. generation
    if state == 'c' then
      expect(keys[key] ~= value, 'a cleared reservation has its key')
    else
      named = named + 1
      expect(keys[key] == value, 'key of page ' .. page .. ' says ' .. tostring(keys[key]) .. ', not ' .. value)
    end
    if state == 's' and parent ~= '' then children[parent] = (children[parent] or 0) + 1 end
  end
  for page, part in pairs(place) do
    expect(part == 'f' or part == 'q' or records[page], 'page ' .. page .. ' in ' .. part .. ' has no record')
  end
  expect(named == key_count, key_count .. ' keys, ' .. named .. ' pages with one')
  local counts, count_number = table_of('c')
  local parent_number = 0
  for parent, number in pairs(children) do
    parent_number = parent_number + 1
    expect(tonumber(counts[parent]) == number, 'a count of children is ' .. tostring(counts[parent]))
  end
  expect(parent_number == count_number, 'counts of children that nobody has')
  for page, packed in pairs(records) do
    local state, _, key = cmsgpack.unpack(packed)
    if state == 's' then
      expect((place[page] == 'i') == (children[key] ~= nil), 'page ' .. page .. ' is in the wrong row ' .. place[page])
    end
  end
  local parked, parked_number = table_of('t')
  expect(parked_number == #members('w'), 'recencies of pages that are not parked')
  for page in pairs(parked) do expect(place[page] == 'w', 'page ' .. page .. ' has a recency, but is not parked') end
  for _, page in ipairs(members('l')) do
    local part = place[page]
    local may_be = part == 'v' or part == 'i' or part == 'w' or part == 'q'
    expect(may_be, 'page ' .. page .. ' is leased in ' .. tostring(part))
  end
end

for _, text in ipairs(call('SMEMBERS', ARGV[1])) do
  check(ARGV[1] .. ':' .. text)
  if problem then return text .. ': ' .. problem end
end
return 'ok'
)lua";

}  // namespace

Status check_redis_tables(RedisServer& server, const std::string& prefix) {
  const metadata::RedisReply reply = server.command({"EVAL", kCheck, "0", prefix + ":1"});
  if (reply.kind == metadata::RedisReply::Kind::kText && reply.text == "ok") return Status::ok();
  return internal_error("the tables in Redis: " + reply.text);
}

}  // namespace larder::conformance
