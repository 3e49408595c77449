// SPDX-License-Identifier: Apache-2.0
// Numbers in these scripts: Lua has doubles only and prints them with 14 digits, so generations and pages stay text
// wherever they are not counted with, and num() prints. Arguments of redis.call() may be numbers: Redis prints 17.
#include "metadata/redis_scripts.h"

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace larder::metadata {
namespace {

// Beginning of every script: time, namespaces, bulk commands, and how a page goes from one state to the next.
constexpr std::string_view kPrelude = R"lua(
local call = redis.call
local clock = call('TIME')
local real_now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = tonumber(ARGV[1]) or real_now
local io_lifetime = tonumber(ARGV[2])
local run_id = ARGV[3]
local PARTS = {'m', 'k', 'p', 'f', 'r', 'q', 'v', 'i', 'w', 't', 'c', 'l'}

local function num(x) return string.format('%.0f', x) end

local function drop_all(base)
  for _, part in ipairs(PARTS) do call('UNLINK', base .. ':' .. part) end
end

-- A hole in what Redis keeps: nothing of this namespace can be trusted any more. The caller initialises it again.
local function lost(s)
  drop_all(s.base)
  error('LARDER_LOST ' .. s.base)
end

local function open(base)
  local s = {base = base}
  for _, part in ipairs(PARTS) do s[part] = base .. ':' .. part end
  local meta = call('HMGET', s.m, 'pages', 'used', 'gen', 'tick', 'run')
  if not meta[1] then return nil end
  s.pages, s.used, s.gen, s.tick = tonumber(meta[1]), tonumber(meta[2]), tonumber(meta[3]), tonumber(meta[4])
  s.run = meta[5]
  s.parks = 1024  -- how many leased pages an eviction of this call may put aside
  return s
end

-- One table a namespace, also where a call names it twice: two would count on without each other.
local function open_all()
  local spaces, by_base = {}, {}
  for i, base in ipairs(KEYS) do
    spaces[i] = by_base[base] or open(base)
    if not spaces[i] then return nil, {'unknown', base} end
    by_base[base] = spaces[i]
  end
  return spaces
end

local function save(s)
  call('HSET', s.m, 'used', num(s.used), 'gen', num(s.gen), 'tick', num(s.tick))
end

-- A command with many arguments, or many answers, in pieces that fit Lua's stack.
local function send(command, key, arguments, option)
  for from = 1, #arguments, 1000 do
    local to = math.min(from + 999, #arguments)
    if option then call(command, key, option, unpack(arguments, from, to))
    else call(command, key, unpack(arguments, from, to)) end
  end
end
local function fetch(command, key, fields)
  local all = {}
  for from = 1, #fields, 1000 do
    local part = call(command, key, unpack(fields, from, math.min(from + 999, #fields)))
    for i = 1, #part do all[from - 1 + i] = part[i] end
  end
  return all
end

-- "s12 1700" -> 's', '12', '1700'; nil for a key that is not there.
local function parse(value)
  if not value then return nil end
  return string.match(value, '^(%a)(%d+) (%d+)$')
end

local function record_of(packed)
  local state, generation, key, parent, session = cmsgpack.unpack(packed)
  return {state = state, generation = generation, key = key, parent = parent, session = session}
end
local function pack(rec) return cmsgpack.pack(rec.state, rec.generation, rec.key, rec.parent, rec.session) end
local function record(s, page)
  local packed = call('HGET', s.p, page)
  if not packed then lost(s) end
  return record_of(packed)
end

local function is_leased(s, page)
  local till = call('ZSCORE', s.l, page)
  return till and tonumber(till) > now and till
end

-- A reserved page that nobody waits for any more. Until `rests_until` somebody may still write to it.
local function free_reserved(s, page, rec, rests_until)
  if rec.state == 'r' then call('HDEL', s.k, rec.key) end
  call('HDEL', s.p, page)
  call('ZREM', s.r, page)
  if rests_until > now then call('ZADD', s.q, rests_until, page) else call('RPUSH', s.f, page) end
end

-- A reserved page whose deadline has passed: its writer may still write for a time.
local function expire(s, page, deadline)
  local rec = record(s, page)
  call('HINCRBY', s.m, 'expired', 1)
  free_reserved(s, page, rec, deadline + io_lifetime)
end

-- A leaf whose lease eviction was waiting for is a candidate again, at its old place.
local function unpark(s, page)
  local tick = call('HGET', s.t, page)
  if not tick then lost(s) end
  call('ZREM', s.w, page)
  call('HDEL', s.t, page)
  return tick
end

-- Does what is due, at most `budget` of each kind. Gives how much there was.
local function settle(s, budget)
  local rested = call('ZRANGEBYSCORE', s.q, '-inf', now, 'LIMIT', 0, budget)
  send('ZREM', s.q, rested)
  send('ZREM', s.l, rested)
  send('RPUSH', s.f, rested)
  local late = call('ZRANGEBYSCORE', s.r, '-inf', now, 'WITHSCORES', 'LIMIT', 0, budget)
  for i = 1, #late, 2 do expire(s, late[i], tonumber(late[i + 1])) end
  local parked = call('ZRANGEBYSCORE', s.w, '-inf', now, 'LIMIT', 0, budget)
  for _, page in ipairs(parked) do call('ZADD', s.v, unpark(s, page), page) end
  return #rested + #late + #parked
end

-- Makes stored pages the most recent. keys[i] is at pages[i].
local function touch(s, keys, pages)
  if #pages == 0 then return end
  local children = fetch('HMGET', s.c, keys)
  local leaves, inner = {}, {}
  for i, page in ipairs(pages) do
    local list = children[i] and inner or leaves
    list[#list + 1] = s.tick
    list[#list + 1] = page
    s.tick = s.tick + 1
  end
  send('ZADD', s.v, leaves)
  send('ZADD', s.i, inner)
  if call('EXISTS', s.w) == 1 then
    send('ZREM', s.w, pages)
    send('HDEL', s.t, pages)
  end
end

local function stored_page(s, key)
  local state, page = parse(call('HGET', s.k, key))
  return state == 's' and page
end

-- A key became stored (a key went away) whose parent is `parent`: leaves and inner pages change places.
local function count_child(s, parent)
  if parent == '' or call('HINCRBY', s.c, parent, 1) > 1 then return end
  local page = stored_page(s, parent)
  if not page then return end
  local tick = call('ZSCORE', s.v, page)
  if tick then call('ZREM', s.v, page) else tick = unpark(s, page) end
  call('ZADD', s.i, tick, page)
end
local function uncount_child(s, parent)
  if parent == '' or call('HINCRBY', s.c, parent, -1) > 0 then return end
  call('HDEL', s.c, parent)
  local page = stored_page(s, parent)
  if not page then return end
  local tick = call('ZSCORE', s.i, page)
  if not tick then lost(s) end
  call('ZREM', s.i, page)
  call('ZADD', s.v, tick, page)
end

-- The key of a stored page is gone. What becomes of the page is the caller's business.
local function forget_stored(s, page, rec)
  call('HDEL', s.k, rec.key)
  call('HDEL', s.p, page)
  if call('ZREM', s.v, page) == 0 and call('ZREM', s.i, page) == 0 then unpark(s, page) end
  uncount_child(s, rec.parent)
end

-- Drops a stored page: free when no reader has it any more.
local function drop_stored(s, page, rec)
  forget_stored(s, page, rec)
  local till = is_leased(s, page)
  if till then return call('ZADD', s.q, till, page) end
  call('ZREM', s.l, page)
  call('RPUSH', s.f, page)
end
)lua";

constexpr std::string_view kInitialize = R"lua(
-- ARGV: 4 pages, 5 the set of namespaces, 6 the namespace's text, 7 how many namespaces there may be.
local base = KEYS[1]
local pages = call('HGET', base .. ':m', 'pages')
if pages then return {'ok', tonumber(pages)} end
if call('SCARD', ARGV[5]) >= tonumber(ARGV[7]) and call('SISMEMBER', ARGV[5], ARGV[6]) == 0 then return {'full'} end
drop_all(base)
-- Generations begin with the time, so that they go on growing when Redis has lost an earlier life of the namespace.
call('HSET', base .. ':m', 'pages', ARGV[4], 'used', 0, 'gen', num(real_now), 'tick', 1, 'run', run_id,
     'evicted', 0, 'expired', 0, 'refused', 0)
call('SADD', ARGV[5], ARGV[6])
return {'ok', tonumber(ARGV[4])}
)lua";

constexpr std::string_view kFind = R"lua(
-- ARGV: 4 the lease, then per namespace: the number of keys, the keys. Answer: page, generation per key; -1, 0: none.
local spaces, refusal = open_all()
if not spaces then return refusal end
local lease = tonumber(ARGV[4])
local out, at = {'ok'}, 5
for _, s in ipairs(spaces) do
  local count, keys = tonumber(ARGV[at]), {}
  for i = 1, count do keys[i] = ARGV[at + i] end
  at = at + 1 + count
  local found_keys, found_pages, leases = {}, {}, {}
  for i, value in ipairs(fetch('HMGET', s.k, keys)) do
    local state, page, generation = parse(value)
    if state == 's' then
      found_keys[#found_keys + 1] = keys[i]
      found_pages[#found_pages + 1] = page
      leases[#leases + 1] = now + lease
      leases[#leases + 1] = page
      out[#out + 1] = tonumber(page)
      out[#out + 1] = tonumber(generation)
    else
      out[#out + 1] = -1
      out[#out + 1] = 0
    end
  end
  if lease > 0 and #found_pages > 0 then
    send('ZADD', s.l, leases, 'GT')  -- a shorter lease does not end a longer one
    touch(s, found_keys, found_pages)
    save(s)
  end
end
return out
)lua";

constexpr std::string_view kReserve = R"lua(
-- ARGV: 4 the session, 5 the time to live, then per namespace: the number of items; key, parent of each.
-- Answer: outcome, page, generation per item. Outcomes: 0 reserved, 1 stored, 2 busy, 3 full.
local session, deadline = ARGV[4], now + tonumber(ARGV[5])

-- Keys that name each other as parents have no leaf. They must not fill a namespace for ever.
local function evict_from_ring(s)
  if call('ZCARD', s.v) + call('ZCARD', s.w) > 0 then return nil end
  local front = call('ZRANGE', s.i, 0, 7, 'WITHSCORES')
  for i = 1, #front, 2 do
    if tonumber(front[i + 1]) >= s.protected then return nil end
    if not is_leased(s, front[i]) then return front[i] end
    call('ZADD', s.i, s.tick, front[i])
    s.tick = s.tick + 1
  end
  return nil
end

local function victim(s)
  while s.parks > 0 do
    local front = call('ZRANGE', s.v, 0, 0, 'WITHSCORES')
    if not front[1] then return evict_from_ring(s) end
    if tonumber(front[2]) >= s.protected then return nil end
    local till = is_leased(s, front[1])
    if not till then return front[1] end
    call('ZREM', s.v, front[1])
    call('ZADD', s.w, till, front[1])
    call('HSET', s.t, front[1], front[2])
    s.parks = s.parks - 1
  end
  return nil
end

-- A page for a new reservation, or nil. What was due when the call began is settled as far as this call can use it.
local function take(s)
  local page = call('LPOP', s.f)
  if page then return page end
  if s.used < s.pages then
    s.used = s.used + 1
    return num(s.used - 1)
  end
  page = not s.is_dry and victim(s)
  if not page then
    s.is_dry = true
    return nil
  end
  forget_stored(s, page, record(s, page))
  call('ZREM', s.l, page)
  call('HINCRBY', s.m, 'evicted', 1)
  return page
end

-- What is stored becomes the most recent and is not evicted by this call, nor the stored parents of what is not.
local function protect(s, keys, parents, held)
  s.protected = s.protected or s.tick
  local extra, values = {}, {}
  for i, parent in ipairs(parents) do
    if parent ~= '' and parent ~= keys[i - 1] then extra[#extra + 1] = parent end
  end
  for i, value in ipairs(fetch('HMGET', s.k, extra)) do values[extra[i]] = value end
  local touched_keys, touched_pages = {}, {}
  local function add(key, value)
    local state, page = parse(value)
    if state ~= 's' then return end
    touched_keys[#touched_keys + 1] = key
    touched_pages[#touched_pages + 1] = page
  end
  for i, key in ipairs(keys) do
    if parents[i] ~= keys[i - 1] then add(parents[i], values[parents[i]]) end
    add(key, held[key])
  end
  touch(s, touched_keys, touched_pages)
end

-- The answer for a key that is reserved; nil if that reservation has just ended.
local function reserved_already(s, page, generation)
  local till = call('ZSCORE', s.r, page)
  if not till then lost(s) end
  if tonumber(till) <= now then
    expire(s, page, tonumber(till))
    return nil
  end
  if record(s, page).session ~= session then return {2, 0, 0} end
  if tonumber(till) < deadline then call('ZADD', s.r, deadline, page) end
  return {0, tonumber(page), tonumber(generation)}
end

local function reserve(s, keys, parents, out)
  save(s)  -- a Redis that is out of memory refuses the whole script by its first write, if that is one that stores
  settle(s, 2 * #keys + 64)  -- at least a page for each key, if so many are due
  if run_id ~= '' and s.run ~= run_id then  -- Redis was restarted, and may have forgotten its last moments
    s.gen = math.max(s.gen, real_now)
    call('HSET', s.m, 'run', run_id)
  end
  local held, fresh, refused = {}, {}, 0
  for i, value in ipairs(fetch('HMGET', s.k, keys)) do held[keys[i]] = value end
  protect(s, keys, parents, held)
  local new_keys, new_records, new_deadlines = {}, {}, {}
  for i, key in ipairs(keys) do
    local state, page, generation = parse(held[key])
    local answer = fresh[key]
    if state == 's' then answer = {1, tonumber(page), tonumber(generation)} end
    if state == 'r' then
      answer = reserved_already(s, page, generation)
      if not answer then held[key] = false end
    end
    if not answer then
      page = take(s)
      if page then
        generation = num(s.gen)
        s.gen = s.gen + 1
        local parent = parents[i] ~= key and parents[i] or ''
        new_keys[#new_keys + 1] = key
        new_keys[#new_keys + 1] = 'r' .. page .. ' ' .. generation
        new_records[#new_records + 1] = page
        new_records[#new_records + 1] = cmsgpack.pack('r', generation, key, parent, session)
        new_deadlines[#new_deadlines + 1] = deadline
        new_deadlines[#new_deadlines + 1] = page
        answer = {0, tonumber(page), tonumber(generation)}
        fresh[key] = answer
      else
        refused = refused + 1
        answer = {3, 0, 0}
      end
    end
    for _, value in ipairs(answer) do out[#out + 1] = value end
  end
  send('HSET', s.k, new_keys)
  send('HSET', s.p, new_records)
  send('ZADD', s.r, new_deadlines)
  if refused > 0 then call('HINCRBY', s.m, 'refused', refused) end
  save(s)
end

local spaces, refusal = open_all()
if not spaces then return refusal end
local out, at = {'ok'}, 6
for _, s in ipairs(spaces) do
  local count, keys, parents = tonumber(ARGV[at]), {}, {}
  for i = 1, count do
    keys[i] = ARGV[at + 2 * i - 1]
    parents[i] = ARGV[at + 2 * i]
  end
  at = at + 1 + 2 * count
  reserve(s, keys, parents, out)
end
return out
)lua";

constexpr std::string_view kConfirm = R"lua(
-- ARGV: 4 the session, 5 the number of groups; of each the number of items and the items; then the number of items to
-- release and these, and 1 if what is released rests. An item: number of the namespace among KEYS, key, page,
-- generation ("0": any). Answer: per group 1 confirmed, 0 refused.
local session, at = ARGV[4], 6

local function read_items(spaces)
  local items = {}
  local count = tonumber(ARGV[at])
  at = at + 1
  for i = 1, count do
    items[i] = {space = spaces[tonumber(ARGV[at])], key = ARGV[at + 1], page = ARGV[at + 2], generation = ARGV[at + 3]}
    at = at + 4
  end
  return items
end

-- The record of the item's page, if it is still what the item says.
local function record_for(item)
  local packed = call('HGET', item.space.p, item.page)
  if not packed then return nil end
  local rec = record_of(packed)
  if rec.key ~= item.key or (item.generation ~= '0' and item.generation ~= rec.generation) then return nil end
  return rec
end

-- Reserved by this session, cleared or not, and its deadline has not passed.
local function is_held(item, rec)
  if rec.state == 's' or rec.session ~= session then return false end
  local till = call('ZSCORE', item.space.r, item.page)
  if not till then lost(item.space) end
  return tonumber(till) > now
end

local function can_confirm(item)
  local rec = record_for(item)
  return rec and (rec.state == 's' or (rec.state == 'r' and is_held(item, rec)))
end

local function store(item)
  local s, page, rec = item.space, item.page, record_for(item)
  if rec.state == 's' then return end  -- before, by the same request
  rec.state, rec.session = 's', ''
  call('HSET', s.p, page, pack(rec))
  call('HSET', s.k, rec.key, 's' .. page .. ' ' .. rec.generation)
  call('ZREM', s.r, page)
  call('ZADD', call('HEXISTS', s.c, rec.key) == 1 and s.i or s.v, s.tick, page)
  s.tick = s.tick + 1
  count_child(s, rec.parent)
end

local function release(item, rests_until)
  local rec = record_for(item)
  if rec and is_held(item, rec) then free_reserved(item.space, item.page, rec, rests_until) end
end

local spaces, refusal = open_all()
if not spaces then return refusal end
for _, s in ipairs(spaces) do settle(s, 64 + #ARGV) end
local groups = {}
local count = tonumber(ARGV[5])
for g = 1, count do groups[g] = read_items(spaces) end
local releases = read_items(spaces)
local rests_until = ARGV[at] == '1' and now + io_lifetime or 0
local out = {'ok'}
for g, items in ipairs(groups) do
  out[g + 1] = 1
  for _, item in ipairs(items) do
    if not can_confirm(item) then out[g + 1] = 0 end
  end
end
-- The whole groups first: an item that is in one of them too is not released by a refused one.
for g, items in ipairs(groups) do
  if out[g + 1] == 1 then for _, item in ipairs(items) do store(item) end end
end
for g, items in ipairs(groups) do
  if out[g + 1] == 0 then for _, item in ipairs(items) do release(item, 0) end end
end
for _, item in ipairs(releases) do release(item, rests_until) end
for _, s in ipairs(spaces) do save(s) end
return out
)lua";

constexpr std::string_view kRemove = R"lua(
-- ARGV: 4 the number of items; of each: number of the namespace among KEYS, key, page, generation ("0": wherever it
-- is).
local spaces, refusal = open_all()
if not spaces then return refusal end
local removed, count = 0, tonumber(ARGV[4])
for i = 0, count - 1 do
  local s, key = spaces[tonumber(ARGV[5 + 4 * i])], ARGV[6 + 4 * i]
  local wanted_page, wanted_generation = ARGV[7 + 4 * i], ARGV[8 + 4 * i]
  local state, page, generation = parse(call('HGET', s.k, key))
  if state == 's' and (wanted_generation == '0' or (wanted_page == page and wanted_generation == generation)) then
    drop_stored(s, page, record(s, page))
    removed = removed + 1
  end
end
return {'ok', removed}
)lua";

constexpr std::string_view kClear = R"lua(
-- ARGV: 4 the prefix, 5 the first page to look at, 6 how many, 7 the generation before which pages count; "" at first.
-- Answer: stored keys dropped, the page to go on with or -1, that generation.
-- In pieces, so that others get their turn; what is reserved after the first piece is not the clear's business.
local spaces, refusal = open_all()
if not spaces then return refusal end
local s, prefix, from = spaces[1], ARGV[4], tonumber(ARGV[5])
local bound = tonumber(ARGV[7]) or s.gen
local to = math.min(from + tonumber(ARGV[6]), s.used)
local pages, dropped = {}, 0
for page = from, to - 1 do pages[#pages + 1] = num(page) end
for i, packed in ipairs(fetch('HMGET', s.p, pages)) do
  local rec = packed and record_of(packed)
  if rec and tonumber(rec.generation) < bound and string.sub(rec.key, 1, #prefix) == prefix then
    if rec.state == 's' then
      drop_stored(s, pages[i], rec)
      dropped = dropped + 1
    elseif rec.state == 'r' then
      call('HDEL', s.k, rec.key)
      rec.state = 'c'
      call('HSET', s.p, pages[i], pack(rec))
    end
  end
end
return {'ok', dropped, to < s.used and to or -1, bound}
)lua";

constexpr std::string_view kStats = R"lua(
-- ARGV: 4 the set of namespaces. Base names are its name, ':', the text. Answer: the text and nine numbers of each.
-- Changes nothing: what is due and not settled is counted as if it were.
local out = {'ok'}
for _, text in ipairs(call('SMEMBERS', ARGV[4])) do
  local s = open(ARGV[4] .. ':' .. text)
  if s then
    local late = call('ZCOUNT', s.r, '-inf', now)
    local reserved = call('ZCARD', s.r) - late
    local stored = call('ZCARD', s.v) + call('ZCARD', s.i) + call('ZCARD', s.w)
    local quarantined = call('ZCOUNT', s.q, '(' .. num(now), '+inf') + late
        - call('ZCOUNT', s.r, '-inf', now - io_lifetime)
    local counts = call('HMGET', s.m, 'evicted', 'expired', 'refused')
    local row = {text, s.pages, s.pages - reserved - stored - quarantined, reserved, stored, quarantined,
                 call('ZCOUNT', s.l, '(' .. num(now), '+inf'),
                 tonumber(counts[1]), tonumber(counts[2]) + late, tonumber(counts[3])}
    for _, value in ipairs(row) do out[#out + 1] = value end
  end
end
return out
)lua";

RedisScript make(std::string_view body) {
  RedisScript script;
  script.text = std::string(kPrelude) + std::string(body);
  std::array<std::uint8_t, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_Digest(script.text.data(), script.text.size(), digest.data(), &size, EVP_sha1(), nullptr);
  script.sha1 = hex_encode(std::span<const std::uint8_t>(digest.data(), size));
  return script;
}

}  // namespace

const RedisScript& redis_script(RedisOperation operation) {
  static const std::array<RedisScript, 7> kScripts{make(kInitialize), make(kFind),  make(kReserve), make(kConfirm),
                                                   make(kRemove),     make(kClear), make(kStats)};
  return kScripts[static_cast<std::size_t>(operation)];
}

}  // namespace larder::metadata
