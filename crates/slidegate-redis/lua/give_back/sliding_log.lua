local function give_back(log, tick_us, cost, at)
  local tick = at / tick_us
  tick = tick - tick % 1
  local nth, word = 0
  while nth < log.len do
    word = log:word(nth)
    if tick_of(log, word) >= tick then break end
    nth = nth + words_of(word)
  end
  if nth == log.len or tick_of(log, word) ~= tick then return end
  local units = cost_of(log, nth, word)
  if cost > units then cost = units end
  local left, kept = units - cost, ''
  if left == 1 then
    kept = pack('<I4', word % WRAP)
  elseif left > 1 then
    kept = pack('<I4I4', word % WRAP + WRAP, left + WRAP)
  end
  if not log.small then log.value = call('GETRANGE', log.key, 0, -1) end
  local behind = nth + words_of(word)
  local words = words_from(log, 0, nth) .. kept .. words_from(log, behind, log.len - behind)
  log.total, log.first, log.len = log.total - cost, 0, #words / 4
  log.cap = log.small and log.len or log.cap
  log.value = ('\0'):rep(HEAD_BYTES) .. words .. ('\0'):rep((log.cap - log.len) * 4)
  if log.len > 0 then
    log.oldest = unpack('<I4', words, 1)
    log.newest = unpack('<I4', words, #words - 3)
    if log.len > 1 and log.newest >= WRAP then log.newest = unpack('<I4', words, #words - 7) end
  end
  log.value = head(log) .. log.value:sub(HEAD_BYTES + 1)
  call('SET', log.key, log.value, 'KEEPTTL')
end
