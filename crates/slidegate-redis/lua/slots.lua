-- States of fixed size share one value for each rule and identity: slots of 28 bytes, each with a tag that
-- tells the limit, until when the key is known to last, and the three numbers of its state.
local SLOT = '<I4I4ddI4'

-- Where the slot of a tag begins. What has none may be no value of ours whose length is right by chance: a state
-- begins with a whole number always.
local function find(value, tag)
  for at = 1, #value, 28 do
    if unpack('<I4', value, at) == tag then return at end
  end
  for at = 9, #value, 28 do
    local last = unpack('<d', value, at)
    if last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then error(FOREIGN .. 'a key', 0) end
  end
end

-- Until when the key is known to last: the latest of its slots.
local function latest(value)
  local known = 0
  for at = 5, #value, 28 do
    local other = unpack('<I4', value, at)
    if other > known then known = other end
  end
  return known
end

-- The value with some slots changed or added, by their tags, and without others that are over.
local function merged(value, changed, now)
  local parts = {}
  for at = 1, #value, 28 do
    local tag, known = unpack('<I4I4', value, at)
    if changed[tag] then
      parts[#parts + 1] = changed[tag]
      changed[tag] = nil
    elseif known * SECOND >= now then
      parts[#parts + 1] = value:sub(at, at + 27)
    end
  end
  for _, slot in pairs(changed) do parts[#parts + 1] = slot end
  return table.concat(parts)
end
