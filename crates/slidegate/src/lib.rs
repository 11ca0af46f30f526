//! wip
pub mod algorithm;
mod clock;
mod decision;
mod hit;
mod key;
mod limit;
mod limiter;
mod outcome;
mod quota;
pub mod store;
mod sync;

pub use algorithm::{Algorithm, Align};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use decision::{Decision, Verdict};
pub use hit::{Admission, Hit};
pub use key::{Key, Scope};
pub use limit::{Limit, LimitError};
pub use limiter::{IntoLimit, Jitter, Limiter, LimiterError, NeverFits};
pub use outcome::Outcome;
pub use quota::{MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, QuotaError};
pub use store::memory::MemoryStore;
pub use store::{LocalStore, Receipt, Store, StoreError, Taken};
