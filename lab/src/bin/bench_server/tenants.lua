wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
function request()
  local tenant = math.random(0, {tenants} - 1)
  return wrk.format(nil, nil, nil, string.format('{{"attributes":{{"tenant":"tenant-%06d","method":"POST"}}}}', tenant))
end
