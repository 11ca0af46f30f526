//! A hit: one charge against one key.

use crate::key::{CounterId, Key};
use crate::limit::Limit;

/// One charge against one key: its cost, the units that must be free, and the effect on the request if they are not.
///
/// ```
/// use slidegate::Limit;
/// use slidegate::store::{ChargeWhen, Hit, Key, Scope, Value, Veto};
///
/// let limit: Limit = "100/min".parse()?;
/// let scope = Scope::new("api", "per-user", "1m", &["user"]);
/// let hit = Hit::new(Key::new(&scope, &[Value::Text("ann")]), &limit, 5);
/// assert_eq!((hit.required, hit.veto, hit.charge), (5, Veto::Alone, ChargeWhen::IfAdmitted));
/// let report = hit.reported();
/// assert_eq!((report.required, report.veto, report.charge), (0, Veto::Never, ChargeWhen::Always));
/// # Ok::<(), slidegate::limit::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// The key. Key and limit together identify the counter.
    pub key: Key<'a>,
    /// The limit of the counter.
    pub limit: &'a Limit,
    /// Units to charge. 0 charges nothing.
    pub cost: u64,
    /// Units that must be free for the hit to fit. With 0 the hit fits while at most max units are used, that is, while
    /// the counter has no debt.
    pub required: u64,
    /// Whether the hit denies the request if it does not fit.
    pub veto: Veto,
    /// The condition on which the cost is charged.
    pub charge: ChargeWhen,
}

/// The effect on the request if a hit does not fit into its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Veto {
    /// The hit denies the request on its own.
    #[default]
    Alone,
    /// The hit denies the request together with all other joint hits of the request, if none of them fits.
    Jointly,
    /// The hit never denies the request.
    Never,
}

/// The condition on which the cost of a hit is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChargeWhen {
    /// The cost is charged if the request is admitted.
    #[default]
    IfAdmitted,
    /// The cost is charged if the request is admitted and the hit fits.
    IfAdmittedAndFits,
    /// The cost is always charged, even if the request is denied, and even above max. The counter then denies until the
    /// debt has left the window.
    Always,
    /// The hit blocks its key: its cost is charged if another limit of the key is exceeded. See [`Block`].
    Block(Block),
}

/// The condition on which a hit blocks its key. After its charge the hit does not fit, and no receipt contains the
/// charge, because no settlement may end a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The number of limits of the key, at least one. Their hits are directly before the hit of the block. The keys of
    /// all these hits have the same values, and the hits have the same veto, which is not [`Veto::Jointly`]. The block
    /// starts when one of the limits does not fit while the hit of the block fits.
    pub limits: u8,
    /// Whether a call during the block extends it: the hit is also charged while it does not fit.
    pub extends: bool,
}

impl ChargeWhen {
    /// Returns whether a denied request can charge the hit.
    pub fn charges_denied(self) -> bool {
        matches!(self, Self::Always | Self::Block(_))
    }

    /// Returns the condition on which the hit blocks its key; `None` if it never does.
    pub fn block(self) -> Option<Block> {
        match self {
            Self::Block(block) => Some(block),
            _ => None,
        }
    }
}

impl<'a> Hit<'a> {
    /// Creates a hit that denies the request if it does not fit, and is charged if the request is admitted. It requires
    /// `cost` free units, but at least one, so that a cost of 0 checks whether one unit would fit.
    #[inline]
    pub fn new(key: Key<'a>, limit: &'a Limit, cost: u64) -> Self {
        let (veto, charge) = (Veto::Alone, ChargeWhen::IfAdmitted);
        Self { key, limit, cost, required: cost.max(1), veto, charge }
    }

    /// Sets the number of units that must be free.
    #[must_use]
    pub fn with_required(self, required: u64) -> Self {
        Self { required, ..self }
    }

    /// Returns the hit in observe mode: it never denies the request, and is charged if the request is admitted and the
    /// hit fits.
    #[must_use]
    pub fn in_observe_mode(self) -> Self {
        Self { veto: Veto::Never, charge: ChargeWhen::IfAdmittedAndFits, ..self }
    }

    /// Returns the hit as a joint hit. Joint hits deny the request only if none of them fits. The hit is charged if the
    /// request is admitted and the hit fits.
    #[must_use]
    pub fn with_joint_veto(self) -> Self {
        Self { veto: Veto::Jointly, charge: ChargeWhen::IfAdmittedAndFits, ..self }
    }

    /// Returns the hit with its charge changed to [`ChargeWhen::Always`]: it is charged even if the request is denied.
    #[must_use]
    pub fn charged_always(self) -> Self {
        Self { charge: ChargeWhen::Always, ..self }
    }

    /// Returns the hit as a report of units that have been consumed already: it never denies the request, and is always
    /// charged.
    #[must_use]
    pub fn reported(self) -> Self {
        Self { required: 0, veto: Veto::Never, charge: ChargeWhen::Always, ..self }
    }

    /// Returns an identifier of the counter that the hit charges, for a store that identifies counters by text: the
    /// text of the key and the [shape](Limit::counter_shape_text) of the limit. If the hit was created from a receipt,
    /// returns the identifier in the receipt.
    ///
    /// ```
    /// use slidegate::Limit;
    /// use slidegate::store::{CounterId, Hit, Key, Scope, Value};
    ///
    /// let limit: Limit = "100/min".parse()?;
    /// let scope = Scope::new("api", "per-user", "1m", &["user"]);
    /// let hit = Hit::new(Key::new(&scope, &[Value::Text("ann")]), &limit, 1);
    /// let text = "api:per-user:1m:{user=ann} sliding_window:1m";
    /// assert_eq!(hit.counter_id(), CounterId::Text(text.into()));
    /// # Ok::<(), slidegate::limit::LimitError>(())
    /// ```
    pub fn counter_id(&self) -> CounterId {
        match self.key.counter_id() {
            Some(id) => id.clone(),
            None => {
                CounterId::Text(format!("{} {}", self.key, self.limit.counter_shape_text()).into())
            }
        }
    }

    /// Returns whether a request with only this hit charges it exactly if it fits, so that a store can check and charge
    /// in one step.
    #[inline]
    pub fn is_charged_only_if_it_fits(&self) -> bool {
        let is_charged_only_if_it_fits = match self.charge {
            ChargeWhen::IfAdmitted => self.veto != Veto::Never,
            ChargeWhen::IfAdmittedAndFits => true,
            ChargeWhen::Always | ChargeWhen::Block(_) => false,
        };
        is_charged_only_if_it_fits && self.cost > 0 && self.cost == self.required
    }
}
