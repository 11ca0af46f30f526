//! One charge that a request asks for.

use crate::key::Key;
use crate::limit::Limit;

/// One charge: on which key, against which limit, how much, and how it is admitted.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// Who is counted.
    pub key: Key<'a>,
    /// What is held against.
    pub limit: &'a Limit,
    /// Units to take. 0 asks whether one unit would fit, and takes nothing.
    pub cost: u64,
    /// How it is admitted.
    pub admission: Admission,
}

/// How a hit is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Vetoes the request if it does not fit; charged if the request passes.
    #[default]
    Enforce,
    /// Never vetoes; charged if the request passes and it fits.
    Observe,
    /// Never vetoes and is always charged, even beyond max and even if another hit vetoes: what it
    /// charges has been spent already. The key then stays denied until enough has left the window.
    Always,
}
