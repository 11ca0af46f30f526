-- The action `lua.slidegate URL` of HAProxy: asks slidegate whether a request may pass, as /etc/haproxy/slidegate.lua.

-- Milliseconds to wait for the answer. Without one the request passes.
local PATIENCE = 1000

-- Headers of the question itself. Those of the client would say something else.
local OWN = { "connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade" }

-- The values of a header, of which HAProxy counts the first as 0.
local function values(list)
    local found = {}
    for nth = 0, list and #list or -1 do
        table.insert(found, list[nth])
    end
    return found
end

local function question(txn)
    local headers = {}
    for name, list in pairs(txn.http:req_get_headers()) do
        headers[name] = values(list)
    end
    for _, name in ipairs(OWN) do
        headers[name] = nil
    end
    headers["x-forwarded-method"] = { txn.sf:method() }
    headers["x-forwarded-uri"] = { txn.sf:url() }
    headers["x-forwarded-host"] = { txn.sf:req_hdr("host") }
    -- Behind what the client wrote there itself, which slidegate does not believe.
    headers["x-forwarded-for"] = headers["x-forwarded-for"] or {}
    table.insert(headers["x-forwarded-for"], txn.sf:src())
    return headers
end

local function deny(txn, answer)
    local reply = txn:reply()
    reply:set_status(answer.status)
    for _, name in ipairs({ "content-type", "ratelimit-policy", "ratelimit", "retry-after" }) do
        for _, value in ipairs(values(answer.headers[name])) do
            reply:add_header(name, value)
        end
    end
    reply:set_body(answer.body)
    txn:done(reply)
end

local function ask(txn, url)
    local answer = core.httpclient():get({ url = url, headers = question(txn), timeout = PATIENCE })
    local headers = answer.headers or {}
    -- HAProxy answers itself, in HTML, if it does not reach slidegate.
    local is_problem = values(headers["content-type"])[1] == "application/problem+json"
    if is_problem and (answer.status == 429 or answer.status == 503) then
        deny(txn, answer)
    elseif answer.status == 200 then
        txn:set_var("txn.slidegate_policy", values(headers["ratelimit-policy"])[1])
        txn:set_var("txn.slidegate_left", values(headers["ratelimit"])[1])
    else
        txn:Warning("slidegate did not answer: status " .. tostring(answer.status))
    end
end

core.register_action("slidegate", { "http-req" }, ask, 1)
