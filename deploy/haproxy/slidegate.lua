-- The action `lua.slidegate URL` for HAProxy: checks a request with slidegate. Install as /etc/haproxy/slidegate.lua.
--
-- A denied request gets its response here. Otherwise the variable txn.slidegate is `allowed`, or `failed` if slidegate
-- made no decision. haproxy.cfg denies requests without the variable, so an error in this script denies the request.

-- Headers that the policy counts by, in lower case. slidegate gets no other header of the client.
local COUNTED = { "x-api-key" }

-- Milliseconds to wait for slidegate. HAProxy calls it up to four times, so a failure takes a second.
local TIMEOUT = 250

-- Returns the values of a header. HAProxy numbers them from 0.
local function values(list)
    local found = {}
    for nth = 0, list and #list or -1 do
        table.insert(found, list[nth])
    end
    return found
end

local function question(txn)
    local client = txn.http:req_get_headers()
    local headers = {
        ["x-forwarded-method"] = { txn.sf:method() },
        -- The path without the query. `OPTIONS *` has no path.
        ["x-forwarded-uri"] = { txn.sf:path() or "" },
        ["x-forwarded-host"] = { txn.sf:req_fhdr("host") or "" },
        ["x-forwarded-for"] = values(client["x-forwarded-for"]),
    }
    -- After the addresses that the client sent, which slidegate does not trust.
    table.insert(headers["x-forwarded-for"], txn.sf:src())
    for _, name in ipairs(COUNTED) do
        headers[name] = values(client[name])
    end
    return headers
end

local function deny(txn, status, answer)
    local reply = txn:reply()
    reply:set_status(status)
    if answer then
        for _, name in ipairs({ "content-type", "cache-control", "ratelimit-policy", "ratelimit", "retry-after" }) do
            for _, value in ipairs(values(answer.headers[name])) do
                reply:add_header(name, value)
            end
        end
        reply:set_body(answer.body)
    end
    txn:done(reply)
end

local function ask(txn, url)
    local answer = core.httpclient():get({ url = url, headers = question(txn), timeout = TIMEOUT })
    local status, headers = answer.status or 0, answer.headers or {}
    -- If slidegate is unreachable, HAProxy creates a response itself, in HTML.
    local is_problem = values(headers["content-type"])[1] == "application/problem+json"
    if is_problem and (status == 429 or status == 503) then
        deny(txn, status, answer)
    elseif status == 200 then
        txn:set_var("txn.slidegate", "allowed")
        local policy, left = values(headers["ratelimit-policy"])[1], values(headers["ratelimit"])[1]
        -- `set_var` would convert an absent value to 0.
        if policy and left then
            txn:set_var("txn.slidegate_policy", policy)
            txn:set_var("txn.slidegate_left", left)
        end
    elseif status >= 500 or status == 0 then
        txn:Warning("slidegate failed: status " .. status)
        txn:set_var("txn.slidegate", "failed")
    else
        txn:Warning("slidegate rejected the request: status " .. status)
        deny(txn, status >= 400 and status or 403)
    end
end

core.register_action("slidegate", { "http-req" }, ask, 1)
