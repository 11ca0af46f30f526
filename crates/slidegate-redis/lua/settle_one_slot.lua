-- Reverts the only charge in place if its slot is the first one of its value.
if revert_bytes == 53 then
  local tag, extra, max, tick_us, window, cost, charged_at = unpack('<I4I4ddddd', ARGV[1], 53)
  local slot = call('GETRANGE', KEYS[1], '0', '27')
  if #slot == 28 then
    local found_tag, _, a, b, c = unpack('<I4I4ddI4', slot)
    if found_tag == tag then
      call('SETRANGE', KEYS[1], '8', pack('<ddI4', revert(tick_us, window, max, extra, cost, charged_at, a, b, c)))
      is_reverted = true
    end
  end
end
