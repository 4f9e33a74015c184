//! Real servers and bad networks, for the test binaries that name this module.

// Each binary uses its part.
#![allow(dead_code)]

pub mod etcd;
pub mod postgres;
pub mod proxy;

/// An address that is this process's own until it ends: below the kernel's range for ports of its own choice, so that nobody takes it by
/// chance while a process that is to come back to it is down, and never given to two, in whichever processes of a test run they are.
/// What says so to the others is the UDP port of the same number, which the kernel frees however this process ends.
pub fn free_address() -> std::net::SocketAddr {
    const MOST: usize = 400;
    static OURS: std::sync::Mutex<std::collections::VecDeque<std::net::UdpSocket>> =
        std::sync::Mutex::new(std::collections::VecDeque::new());
    loop {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], rand::random_range(12_000..32_000)));
        let mark = match std::net::UdpSocket::bind(address) {
            Ok(mark) => mark,
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => continue,
            Err(error) => panic!("{address}: {error}"),
        };
        // Somebody may be there who does not ask.
        if std::net::TcpListener::bind(address).is_ok() {
            let mut ours = OURS.lock().unwrap();
            // A bench draws very many, and is done with the first of them by then.
            if ours.len() == MOST {
                ours.pop_front();
            }
            ours.push_back(mark);
            return address;
        }
    }
}
