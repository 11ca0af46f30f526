//! wip
pub mod algorithm;
mod clock;
mod decision;
mod gate;
pub mod headers;
mod hit;
mod key;
mod limit;
mod limiter;
mod outcome;
pub mod policy;
mod quota;
mod request;
pub mod store;
mod sync;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use algorithm::{Algorithm, Align};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use decision::{Decision, Verdict};
pub use gate::{Gate, Ruling, Standing};
pub use hit::{Admission, Hit};
pub use key::{Key, Scope};
pub use limit::{Limit, LimitError};
pub use limiter::{IntoLimit, Jitter, Limiter, LimiterError, NeverFits};
pub use outcome::Outcome;
pub use policy::Policy;
pub use policy::file::{PolicyError, PolicyErrors};
pub use quota::{MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, QuotaError};
pub use request::{DEFAULT_DOMAIN, Descriptor, Request};
pub use store::memory::MemoryStore;
pub use store::{LocalStore, Receipt, Store, StoreError, Taken};
