-- Decides the limits of one rule for `key` and its `value`, writes the value, and sets `reply`. All limits are enforced,
-- and their states are different slots of the value.
--
-- This file and its drivers are templates, because tables and loops over the limits would take a third longer: text in
-- double braces is repeated for each limit, with its number in place of the at sign. Each algorithm has its own `decide`.

local {{found@, expiry_s@, a@, b@, c@, }}other_slots, is_foreign
local {{charged@, remaining@, reset@, retry@, charged_at@, remaining_before@, reset_before@, }}known_expiry_s, reply, take
-- The loop runs again only if the clock has stepped back: then with a value whose slots are set back.
repeat
  local is_set_back = false
  known_expiry_s = 0
  -- Usually the value consists of the slots of these limits, in their order. Otherwise each slot is searched.
  if #value == {{28 + }}0 then {{found@, expiry_s@, a@, b@, c@, }}other_slots = unpack('<{{I4I4ddI4}}', value) end
  if {{found@ == tag@ and }}true then
    other_slots = nil
  else
    {{expiry_s@, a@, b@, c@ = 0, 0, 0, 0
    }}other_slots, is_foreign = '', type(value) == 'table' or #value % 28 > 0
    for position = 1, is_foreign and 0 or #value, 28 do
      local tag, expiry_s, a, b, c = unpack('<I4I4ddI4', value, position)
      if a < 0 or a > 2 ^ 53 or a % 1 ~= 0 then is_foreign = true end
      {{if tag == tag@ then
        expiry_s@, a@, b@, c@ = expiry_s, a, b, c
      else}}if expiry_s * SECOND >= now - SECOND then
        other_slots = other_slots .. value:sub(position, position + 27)
      end
      if expiry_s > known_expiry_s then known_expiry_s = expiry_s end
    end
  end

  -- Charges each limit until one does not fit. The figures before the charges are kept, in case they are discarded.
  take = is_foreign and 0 or mode
  {{charged@, remaining@, reset@, retry@, charged_at@, a@, b@, c@, remaining_before@, reset_before@ =
    decide@(now + phase@, tick_us@, window@, max@, extra@, debt@, required@, cost@, take, a@, b@, c@)
  if charged@ == nil and not is_foreign then
    local _, reset = nil, nil
    a@, b@, c@, is_set_back = remaining@, reset@, retry@, true
    _, _, reset = decide@(now + phase@, tick_us@, window@, max@, extra@, debt@, 1, 0, 0, a@, b@, c@)
    value = set_back_slot(key, value, tag@, now, reset, tick_us@ * window@, margin_s, a@, b@, c@)
  elseif retry@ ~= 0 then
    take = 0
  end
  }}
until not is_set_back
if is_foreign then
  reply = pack('<{{Bddddd}}'{{, 2, 0, 0, 0, 0, 0}})
elseif take == 0 then
  {{if charged@ then remaining@, reset@, retry@ = remaining_before@, reset_before@, 0 end
  }}reply = pack('<{{Bddddd}}'{{, 0, remaining@, reset@, retry@, 0, 0}})
else
  {{if expiry_s@ > known_expiry_s then known_expiry_s = expiry_s@ end
  }}local latest_expiry_s, _ = known_expiry_s, nil
  {{local kind@ = 1
  if now + reset@ > expiry_s@ * SECOND then
    expiry_s@ = known_expiry_s
    if now + reset@ > expiry_s@ * SECOND then
      expiry_s@ = key_expiry(now, reset@, tick_us@ * window@, margin_s)
      if expiry_s@ > latest_expiry_s then latest_expiry_s = expiry_s@ end
    end
  end
  if remaining@ <= 0 then
    -- Nothing remains: the reply has the time until one unit fits.
    kind@ = 6
    _, _, _, retry@ = decide@(now + phase@, tick_us@, window@, max@, extra@, debt@, 1, 0, 0, a@, b@, c@)
  end
  }}value = pack('<{{I4I4ddI4}}'{{, tag@, expiry_s@, a@, b@, c@}})
  if other_slots then value = other_slots .. value end
  if latest_expiry_s > known_expiry_s then
    local ttl_ms = latest_expiry_s * 1000 - now / 1000
    call('SET', key, value, 'PX', ttl_ms + -ttl_ms % 1 + margin_s * 1000)
  elseif other_slots then
    call('SET', key, value, 'KEEPTTL')
  else
    call('SETRANGE', key, '0', value)
  end
  reply = pack('<{{Bddddd}}'{{, kind@, remaining@, reset@, retry@, charged_at@, charged@}})
end
