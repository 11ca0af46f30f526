-- States of fixed size share one value for each rule and identity. The value consists of slots of 28 bytes: the tag of
-- the limit, the time in seconds until which the key is known to exist, and the three numbers of the state.
local SLOT = '<I4I4ddI4'

-- Returns the position of the slot with a tag, or nil; and true if the value was not written by slidegate. A foreign
-- value may have a valid length by chance. So if no slot has the tag, each state must begin with a whole number.
local function find_slot(value, tag)
  if #value % 28 > 0 then return nil, true end
  for position = 1, #value, 28 do
    if unpack('<I4', value, position) == tag then return position end
  end
  for position = 9, #value, 28 do
    local last_charge = unpack('<d', value, position)
    if last_charge < 0 or last_charge > 2 ^ 53 or last_charge % 1 ~= 0 then return nil, true end
  end
end

-- Returns the time until which the key is known to exist: the latest of its slots.
local function latest_expiry(value)
  local expiry_s = 0
  for position = 5, #value, 28 do
    local slot_expiry_s = unpack('<I4', value, position)
    if slot_expiry_s > expiry_s then expiry_s = slot_expiry_s end
  end
  return expiry_s
end
