//! What lies between two parties: a proxy for each address of the other one.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::proxy::{Direction, Proxy};

/// What networks do.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// Sockets stay, no byte moves.
    Held,
    RequestsLost,
    AnswersLost,
    /// Every connection ends, once.
    Dropped,
    /// Both ways.
    Delayed(Duration),
    RequestsDelayed(Duration),
    AnswersDelayed(Duration),
}

/// See the module.
pub struct Link(Vec<Proxy>);

impl Link {
    /// Everything passes.
    pub async fn to(addresses: &[SocketAddr]) -> Link {
        let mut proxies = Vec::new();
        for address in addresses {
            proxies.push(Proxy::to(*address).await);
        }
        Link(proxies)
    }

    /// Where the other side is found, in its own order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|proxy| proxy.address).collect()
    }

    /// On the way to one address alone.
    pub fn harm_one(&self, at: usize, harm: Harm) {
        apply(&self.0[at], harm);
    }

    /// Until [`Link::restore`].
    pub fn harm(&self, harm: Harm) {
        self.0.iter().for_each(|proxy| apply(proxy, harm));
    }

    /// The same on the way to all but one address.
    pub fn harm_all_but(&self, spared: usize, harm: Harm) {
        self.0.iter().enumerate().filter(|(at, _)| *at != spared).for_each(|(_, proxy)| apply(proxy, harm));
    }

    /// Everything passes, what was held first.
    pub fn restore(&self) {
        for proxy in &self.0 {
            proxy.delay_requests(Duration::ZERO);
            proxy.delay_answers(Duration::ZERO);
            proxy.restore();
        }
    }
}

fn apply(proxy: &Proxy, harm: Harm) {
    match harm {
        Harm::Held => proxy.black_hole(),
        Harm::RequestsLost => proxy.hold(Direction::Requests),
        Harm::AnswersLost => proxy.hold(Direction::Answers),
        Harm::Dropped => proxy.drop_all(),
        Harm::Delayed(delay) => {
            proxy.delay_requests(delay);
            proxy.delay_answers(delay);
        }
        Harm::RequestsDelayed(delay) => proxy.delay_requests(delay),
        Harm::AnswersDelayed(delay) => proxy.delay_answers(delay),
    }
}
