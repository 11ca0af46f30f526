// Counts in Redis with slidegate's script `check.lua`, without a slidegate server, and shares the counters of
//
//     slidegate serve --store redis://…
//
// for this rule (docs/reference/redis-wire-format.md documents the keys, the argument and the reply of the script):
//
//     rules: [{ name: per-client, per: [client], limits: [5/h] }]
//
//     npm install redis
//     slidegate lua --out lua
//     node limit.mjs lua redis://127.0.0.1/ sliding_window alice [number of requests]
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createClient, defineScript } from 'redis'

// The end of the key of a limit of an hour, by its algorithm.
const KEY_ENDS = { sliding_window: ':log', sliding_log: ':1h:sliding_log:1h', sliding_counter: '' }

const escape = (text) => encodeURIComponent(text)
  .replace(/[!*'()]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`)
  .replace(/%(2F|40|2B|3A)/g, decodeURIComponent)

// Requests one unit, and returns the reply of the script.
async function take(connection, algorithm, client) {
  // An IPv6 address is counted by its network, whose text is not escaped: {client=(2001:db8::/64)}.
  const key = `slidegate:default:per-client:{client=${escape(client)}}${KEY_ENDS[algorithm]}`
  const limit = { algorithm, max: 5, window_ms: 3_600_000 }
  return JSON.parse(await connection.check(key, JSON.stringify({ limits: [limit] })))
}

const [folder, address, algorithm, client, times = 1] = process.argv.slice(2)
// The client sends EVALSHA, and the text of the script only if Redis does not have it.
const check = defineScript({
  SCRIPT: readFileSync(join(folder, 'check.lua'), 'utf8'),
  NUMBER_OF_KEYS: 1,
  parseCommand(parser, key, argument) {
    parser.pushKey(key)
    parser.push(argument)
  },
})
const connection = createClient({ url: address, scripts: { check } })
await connection.connect()
for (let nth = 0; nth < times; nth++) {
  const { allowed, remaining, retry_after_ms } = await take(connection, algorithm, client)
  console.log(allowed ? `allowed, ${remaining} left` : `denied, try again in ${(retry_after_ms / 1000).toFixed(3)} s`)
}
connection.destroy()
