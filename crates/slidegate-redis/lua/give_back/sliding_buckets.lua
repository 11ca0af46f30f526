local function give_back(log, precision_us, cost, at)
  local bucket = at / precision_us
  bucket = bucket - bucket % 1
  local oldest, newest = held(log, precision_us)
  if bucket < oldest or bucket > newest then return end
  local count = count_of(log, bucket)
  if cost > count then cost = count end
  set_count(log, bucket, count - cost)
  log.total = log.total - cost
  save(log)
end
