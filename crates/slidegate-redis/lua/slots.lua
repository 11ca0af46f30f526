-- States of fixed size share one value for each rule and identity: slots of 28 bytes, each with a tag that
-- tells the limit, until when the key is known to last, and the three numbers of its state.
local SLOT = '<I4I4ddI4'

-- Where the slot of a tag begins, and whether the value is none of ours. One that has no such slot may have the
-- right length by chance: a state begins with a whole number always.
local function find(value, tag)
  if #value % 28 > 0 then return nil, true end
  for at = 1, #value, 28 do
    if unpack('<I4', value, at) == tag then return at end
  end
  for at = 9, #value, 28 do
    local last = unpack('<d', value, at)
    if last < 0 or last > 2 ^ 53 or last % 1 ~= 0 then return nil, true end
  end
end

-- Until when the key is known to last: the latest of its slots.
local function latest(value)
  local known = 0
  for slot_at = 5, #value, 28 do
    local other = unpack('<I4', value, slot_at)
    if other > known then known = other end
  end
  return known
end
